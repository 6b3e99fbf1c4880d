"""AlexNet (Krizhevsky 2014, arXiv 1404.5997) and VGG-16 (Simonyan, Zisserman 2014, arXiv 1409.1556, configuration D):
convolutions, then three linear layers; with torchvision's names."""


def alexnet(net, images, classes):
    x = images
    # For each convolution: index in torchvision's "features", channels, kernel size, stride, padding, and whether a
    # pooling layer follows.
    for number, out, kernel, stride, padding, pool in ((0, 64, 11, 4, 2, True), (3, 192, 5, 1, 2, True),
                                                       (6, 384, 3, 1, 1, False), (8, 256, 3, 1, 1, False),
                                                       (10, 256, 3, 1, 1, True)):
        x = net.relu(net.conv(x, f"features.{number}", out, kernel, stride, padding, bias=True))
        if pool:
            x = net.max_pool(x, 3, 2)
    x = net.dropout(net.flatten(net.adaptive_average_pool(x, 6)), 0.5)
    x = net.dropout(net.relu(net.linear(x, "classifier.1", 4096)), 0.5)
    x = net.relu(net.linear(x, "classifier.4", 4096))
    return [net.linear(x, "classifier.6", classes)]


def vgg16(net, images, classes):
    x, number = images, 0
    for channels, convs in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(convs):
            x = net.relu(net.conv(x, f"features.{number}", channels, 3, 1, 1, bias=True))
            number += 2  # the ReLU has an index too
        x = net.max_pool(x, 2, 2)
        number += 1
    x = net.flatten(net.adaptive_average_pool(x, 7))
    x = net.dropout(net.relu(net.linear(x, "classifier.0", 4096)), 0.5)
    x = net.dropout(net.relu(net.linear(x, "classifier.3", 4096)), 0.5)
    return [net.linear(x, "classifier.6", classes)]
