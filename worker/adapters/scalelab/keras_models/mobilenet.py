"""MobileNetV2 (Sandler et al. 2018, arXiv 1801.04381, table 2), with torchvision's names."""

# For each group of blocks: expansion, channels, number of blocks, stride of the first block.
_PLAN = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def build(net, images, classes):
    x = _conv_norm(net, images, "features.0", 32, 3, 2)
    number = 1
    for expansion, channels, blocks, stride in _PLAN:
        for i in range(blocks):
            x = _block(net, x, f"features.{number}.conv", expansion, channels, stride if i == 0 else 1)
            number += 1
    x = _conv_norm(net, x, f"features.{number}", 1280, 1)
    return [net.linear(net.dropout(net.mean(x), 0.2), "classifier.1", classes)]


def _conv_norm(net, x, name, out, kernel, stride=1, depthwise=False):
    x = net.conv(x, name + ".0", out, kernel, stride, kernel // 2, depthwise=depthwise)
    return net.relu(net.norm(x, name + ".1"), most=6)


def _block(net, x, name, expansion, out, stride):
    inside, y, part = net.channels(x) * expansion, x, 0
    if expansion != 1:
        y = _conv_norm(net, y, f"{name}.{part}", inside, 1)
        part += 1
    y = _conv_norm(net, y, f"{name}.{part}", inside, 3, stride, depthwise=True)
    y = net.norm(net.conv(y, f"{name}.{part + 1}", out, 1), f"{name}.{part + 2}")
    return net.add(x, y) if stride == 1 and net.channels(x) == out else y
