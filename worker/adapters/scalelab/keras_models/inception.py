"""Inception V3 (Szegedy et al. 2015, arXiv 1512.00567) with its auxiliary head, with torchvision's names."""


def build(net, images, classes):
    x = _conv(net, images, "Conv2d_1a_3x3", 32, 3, 2)
    x = _conv(net, x, "Conv2d_2a_3x3", 32, 3)
    x = net.max_pool(_conv(net, x, "Conv2d_2b_3x3", 64, 3, padding=1), 3, 2)
    x = _conv(net, x, "Conv2d_3b_1x1", 80, 1)
    x = net.max_pool(_conv(net, x, "Conv2d_4a_3x3", 192, 3), 3, 2)
    for name, pool_channels in (("Mixed_5b", 32), ("Mixed_5c", 64), ("Mixed_5d", 64)):
        x = _block_a(net, x, name, pool_channels)
    x = _block_b(net, x, "Mixed_6a")
    for name, width in (("Mixed_6b", 128), ("Mixed_6c", 160), ("Mixed_6d", 160), ("Mixed_6e", 192)):
        x = _block_c(net, x, name, width)
    auxiliary = _auxiliary_head(net, x, "AuxLogits", classes)
    x = _block_d(net, x, "Mixed_7a")
    for name in ("Mixed_7b", "Mixed_7c"):
        x = _block_e(net, x, name)
    return [net.linear(net.dropout(net.mean(x), 0.5), "fc", classes), auxiliary]


def _conv(net, x, name, out, kernel, stride=1, padding=0):
    x = net.conv(x, name + ".conv", out, kernel, stride, padding)
    return net.relu(net.norm(x, name + ".bn", epsilon=0.001))


def _wide(net, x, name, out):
    return _conv(net, x, name, out, (1, 7), padding=(0, 3))


def _tall(net, x, name, out):
    return _conv(net, x, name, out, (7, 1), padding=(3, 0))


def _pooled(net, x, name, out):
    return _conv(net, net.average_pool(x, 3, 1, 1), name + ".branch_pool", out, 1)


def _double_3x3(net, x, name, stride=1):
    x = _conv(net, x, name + ".branch3x3dbl_1", 64, 1)
    x = _conv(net, x, name + ".branch3x3dbl_2", 96, 3, padding=1)
    return _conv(net, x, name + ".branch3x3dbl_3", 96, 3, stride, padding=1 if stride == 1 else 0)


def _block_a(net, x, name, pool_channels):
    five = _conv(net, x, name + ".branch5x5_1", 48, 1)
    return net.concatenate([
        _conv(net, x, name + ".branch1x1", 64, 1),
        _conv(net, five, name + ".branch5x5_2", 64, 5, padding=2),
        _double_3x3(net, x, name),
        _pooled(net, x, name, pool_channels),
    ])


def _block_b(net, x, name):
    return net.concatenate([
        _conv(net, x, name + ".branch3x3", 384, 3, 2),
        _double_3x3(net, x, name, stride=2),
        net.max_pool(x, 3, 2),
    ])


def _block_c(net, x, name, width):
    seven = _conv(net, x, name + ".branch7x7_1", width, 1)
    seven = _wide(net, seven, name + ".branch7x7_2", width)
    seven = _tall(net, seven, name + ".branch7x7_3", 192)
    double = _conv(net, x, name + ".branch7x7dbl_1", width, 1)
    double = _tall(net, double, name + ".branch7x7dbl_2", width)
    double = _wide(net, double, name + ".branch7x7dbl_3", width)
    double = _tall(net, double, name + ".branch7x7dbl_4", width)
    double = _wide(net, double, name + ".branch7x7dbl_5", 192)
    return net.concatenate([
        _conv(net, x, name + ".branch1x1", 192, 1), seven, double, _pooled(net, x, name, 192)])


def _block_d(net, x, name):
    three = _conv(net, x, name + ".branch3x3_1", 192, 1)
    seven = _conv(net, x, name + ".branch7x7x3_1", 192, 1)
    seven = _tall(net, _wide(net, seven, name + ".branch7x7x3_2", 192), name + ".branch7x7x3_3", 192)
    return net.concatenate([
        _conv(net, three, name + ".branch3x3_2", 320, 3, 2),
        _conv(net, seven, name + ".branch7x7x3_4", 192, 3, 2),
        net.max_pool(x, 3, 2),
    ])


def _both_ways(net, x, name, wide, tall):
    return net.concatenate([_conv(net, x, f"{name}.{wide}", 384, (1, 3), padding=(0, 1)),
                            _conv(net, x, f"{name}.{tall}", 384, (3, 1), padding=(1, 0))])


def _block_e(net, x, name):
    three = _conv(net, x, name + ".branch3x3_1", 384, 1)
    double = _conv(net, x, name + ".branch3x3dbl_1", 448, 1)
    double = _conv(net, double, name + ".branch3x3dbl_2", 384, 3, padding=1)
    return net.concatenate([
        _conv(net, x, name + ".branch1x1", 320, 1),
        _both_ways(net, three, name, "branch3x3_2a", "branch3x3_2b"),
        _both_ways(net, double, name, "branch3x3dbl_3a", "branch3x3dbl_3b"),
        _pooled(net, x, name, 192),
    ])


def _auxiliary_head(net, x, name, classes):
    x = _conv(net, net.average_pool(x, 5, 3), name + ".conv0", 128, 1)
    x = _conv(net, x, name + ".conv1", 768, 5)
    return net.linear(net.mean(x), name + ".fc", classes)
