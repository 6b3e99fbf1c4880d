"""ResNets for images of ImageNet's size (He et al. 2015, arXiv 1512.03385), with torchvision's names.

As in torchvision, the stride of a bottleneck is in its 3x3 convolution.
"""

# Maps the depth to (whether blocks are bottlenecks, numbers of blocks of each stage).
PLANS = {
    18: (False, (2, 2, 2, 2)),
    34: (False, (3, 4, 6, 3)),
    50: (True, (3, 4, 6, 3)),
    101: (True, (3, 4, 23, 3)),
    152: (True, (3, 8, 36, 3)),
}


def builder(depth):
    return lambda net, images, classes: _build(net, images, classes, *PLANS[depth])


def _build(net, images, classes, bottleneck, blocks):
    x = net.relu(net.norm(net.conv(images, "conv1", 64, 7, 2, 3), "bn1"))
    x = net.max_pool(x, 3, 2, 1)
    for stage, count in enumerate(blocks, start=1):
        for i in range(count):
            stride = 2 if stage > 1 and i == 0 else 1
            x = _block(net, x, f"layer{stage}.{i}", 32 << stage, stride, bottleneck)
    return [net.linear(net.mean(x), "fc", classes)]


def _block(net, x, name, width, stride, bottleneck):
    # The channels, kernel size and stride of each convolution of a block.
    if bottleneck:
        convs = [(width, 1, 1), (width, 3, stride), (4 * width, 1, 1)]
    else:
        convs = [(width, 3, stride), (width, 3, 1)]
    y, out = x, convs[-1][0]
    for number, (channels, kernel, step) in enumerate(convs, start=1):
        y = net.conv(y, f"{name}.conv{number}", channels, kernel, step, kernel // 2)
        y = net.norm(y, f"{name}.bn{number}")
        if number < len(convs):
            y = net.relu(y)
    if stride != 1 or net.channels(x) != out:
        x = net.norm(net.conv(x, name + ".downsample.0", out, 1, stride), name + ".downsample.1")
    return net.relu(net.add(y, x))
