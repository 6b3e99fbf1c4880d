"""ResNets in Gluon, with the names of the native engines. PyTorch and MXNet use the same layout of weights."""
import mxnet as mx
from mxnet.gluon import nn

# Maps the depth to the numbers of blocks of each stage: three stages for CIFAR (He et al. 2015, arXiv 1512.03385,
# section 4.2), four for ImageNet.
_CIFAR = {8: 1, 20: 3, 32: 5, 44: 7, 56: 9}
_BOTTLENECKS = (3, 4, 6, 3)  # ResNet-50


class _Net(nn.HybridBlock):
    """Layers by native name. MXNet's running variance is a mean of biased batch variances; PyTorch uses unbiased variances."""

    def __init__(self):
        super().__init__(prefix="")
        self.slots = {}  # native name -> gluon Parameter

    def conv(self, name, inside, out, kernel, stride=1):
        layer = nn.Conv2D(out, kernel, stride, kernel // 2, use_bias=False, in_channels=inside, prefix=name + ".")
        self.slots[name + ".weight"] = layer.weight
        return self._keep(name, layer)

    def norm(self, name, channels):
        layer = nn.BatchNorm(momentum=0.9, epsilon=1e-5, in_channels=channels, prefix=name + ".")
        self.slots.update({name + ".weight": layer.gamma, name + ".bias": layer.beta,
                           name + ".running_mean": layer.running_mean, name + ".running_var": layer.running_var})
        return self._keep(name, layer)

    def linear(self, name, inside, out):
        layer = nn.Dense(out, in_units=inside, prefix=name + ".")
        self.slots.update({name + ".weight": layer.weight, name + ".bias": layer.bias})
        return self._keep(name, layer)

    def _keep(self, name, layer):
        self.register_child(layer, name)
        return layer

    def load(self, weights, context):
        """Loads all weights from a dict of native names. Raises ValueError if a name is missing."""
        missing = self.slots.keys() - weights.keys()
        if missing:
            raise ValueError(f"the initial weights have no {sorted(missing)[0]}: they belong to another model")
        self.initialize(mx.init.Zero(), ctx=context)
        for name, parameter in self.slots.items():
            parameter.set_data(mx.nd.array(weights[name]))


class CifarResNet(_Net):
    def __init__(self, depth, classes):
        super().__init__()
        self._first = (self.conv("conv", 3, 16, 3), self.norm("norm", 16))
        self._blocks, channels = [], 16
        for stage in (1, 2, 3):
            width = 8 << stage
            for i in range(_CIFAR[depth]):
                name, stride = f"stage{stage}_{i}", 2 if stage > 1 and i == 0 else 1
                layers = (self.conv(name + ".conv1", channels, width, 3, stride), self.norm(name + ".norm1", width),
                          self.conv(name + ".conv2", width, width, 3), self.norm(name + ".norm2", width))
                self._blocks.append((layers, stride, width - channels))
                channels = width
        self._last = self.linear("linear", channels, classes)

    def hybrid_forward(self, F, x):
        conv, norm = self._first
        x = F.relu(norm(conv(x)))
        for (conv1, norm1, conv2, norm2), stride, more in self._blocks:
            y = norm2(conv2(F.relu(norm1(conv1(x)))))
            if stride == 2:  # option A: take every other pixel, and add channels of zeros
                x = F.slice(x, begin=(None, None, None, None), end=(None, None, None, None), step=(1, 1, 2, 2))
                zeros = F.zeros_like(F.slice_axis(x, axis=1, begin=0, end=more // 2))
                x = F.concat(zeros, x, zeros, dim=1)
            x = F.relu(y + x)
        return self._last(F.mean(x, axis=(2, 3)))


class ResNet50(_Net):
    def __init__(self, classes):
        super().__init__()
        self._first = (self.conv("conv1", 3, 64, 7, 2), self.norm("bn1", 64))
        self._blocks, channels = [], 64
        for stage, count in enumerate(_BOTTLENECKS, start=1):
            width = 32 << stage
            for i in range(count):
                name, stride = f"layer{stage}.{i}", 2 if stage > 1 and i == 0 else 1
                row = ((channels, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1))
                layers = [(self.conv(f"{name}.conv{n}", *shape), self.norm(f"{name}.bn{n}", shape[1]))
                          for n, shape in enumerate(row, start=1)]
                shortcut = None
                if i == 0:
                    shortcut = (self.conv(name + ".downsample.0", channels, 4 * width, 1, stride),
                                self.norm(name + ".downsample.1", 4 * width))
                self._blocks.append((layers, shortcut))
                channels = 4 * width
        self._last = self.linear("fc", channels, classes)

    def hybrid_forward(self, F, x):
        conv, norm = self._first
        x = F.Pooling(F.relu(norm(conv(x))), kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="max")
        for layers, shortcut in self._blocks:
            y = x
            for number, (conv, norm) in enumerate(layers, start=1):
                y = norm(conv(y))
                y = F.relu(y) if number < len(layers) else y
            if shortcut is not None:
                x = shortcut[1](shortcut[0](x))
            x = F.relu(y + x)
        return self._last(F.mean(x, axis=(2, 3)))


def make(name, classes):
    """Returns the model without weights. Raises ValueError for an unknown name."""
    if name == "resnet50":
        return ResNet50(classes)
    depth = name[len("resnet"):] if name.startswith("resnet") else ""
    if not depth.isdecimal() or int(depth) not in _CIFAR:
        known = ", ".join(f"resnet{d}" for d in (*_CIFAR, 50))
        raise ValueError(f'the engines of MXNet have no model "{name}": they have {known}')
    return CifarResNet(int(depth), classes)
