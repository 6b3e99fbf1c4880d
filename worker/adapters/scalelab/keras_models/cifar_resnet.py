"""ResNets for images of CIFAR's size (He et al. 2015, arXiv 1512.03385, section 4.2; shortcuts without weights)."""

DEPTHS = (8, 20, 32, 44, 56)


def builder(depth):
    return lambda net, images, classes: _build(net, images, classes, depth)


def _build(net, images, classes, depth):
    x = net.relu(net.norm(net.conv(images, "conv", 16, 3, padding=1), "norm"))
    for stage in (1, 2, 3):
        for i in range((depth - 2) // 6):
            stride = 2 if stage > 1 and i == 0 else 1
            x = _block(net, x, f"stage{stage}_{i}", 8 << stage, stride)
    return [net.linear(net.mean(x), "linear", classes)]


def _block(net, x, name, out, stride):
    y = net.relu(net.norm(net.conv(x, name + ".conv1", out, 3, stride, 1), name + ".norm1"))
    y = net.norm(net.conv(y, name + ".conv2", out, 3, 1, 1), name + ".norm2")
    if stride == 2:  # option A: take every other pixel, and add channels of zeros
        more = out - net.channels(x)
        x = net.pad_channels(net.every_other_pixel(x), more // 2, more - more // 2)
    return net.relu(net.add(y, x))
