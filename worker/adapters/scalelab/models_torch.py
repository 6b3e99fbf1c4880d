"""Models for PyTorch, with the parameter names of the native engines. The CIFAR ResNets are defined here; models for images of
ImageNet's size come from torchvision."""
import torch
from torch import nn
from torch.nn import functional as F

from .errors import RunError

CIFAR_DEPTHS = {"resnet8": 8, "resnet20": 20, "resnet32": 32, "resnet44": 44, "resnet56": 56}
TORCHVISION = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "mobilenet_v2", "alexnet", "inception_v3", "vgg16")


class _Block(nn.Module):
    """Two convolutions and a shortcut without parameters (He et al. 2015, section 4.2, option A)."""

    def __init__(self, inner, outer, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outer)
        self.stride, self.below = stride, (outer - inner) // 2
        self.above = outer - inner - self.below

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        y = self.norm2(self.conv2(y))
        if self.above or self.stride > 1:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.below, self.above))
        return F.relu(y + x, inplace=True)


class _MeanOfPixels(nn.Module):
    def forward(self, x):
        return x.mean((2, 3))


class ResNetCifar(nn.Module):
    def __init__(self, depth, classes):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        channels, self.blocks = 16, []  # a plain list; add_module gives the blocks the names of the native model
        for stage, width in enumerate((16, 32, 64), 1):
            for i in range((depth - 2) // 6):
                self.blocks.append(f"stage{stage}_{i}")
                self.add_module(self.blocks[-1], _Block(channels, width, 2 if stage > 1 and i == 0 else 1))
                channels = width
        self.linear = nn.Linear(channels, classes)

    def forward(self, images):
        x = F.relu(self.norm(self.conv(images)), inplace=True)
        for block in self.blocks:
            x = getattr(self, block)(x)
        return self.linear(x.mean((2, 3)))


def make_model(name, classes, parameters=None):
    """Returns the model, with `parameters` (native name -> numpy array) if they are given.

    The model maps images [n, 3, height, width] to logits [n, classes]. In training, inception_v3 returns torchvision's pair.
    """
    if name in CIFAR_DEPTHS:
        model = ResNetCifar(CIFAR_DEPTHS[name], classes)
    elif name in TORCHVISION:
        model = _torchvision(name, classes)
    else:
        raise RunError(
            f'the PyTorch engines have no model "{name}": they have {", ".join((*CIFAR_DEPTHS, *TORCHVISION))}', "configuration"
        )
    if parameters is not None:
        load(model, parameters)
    return model


def _torchvision(name, classes):
    try:
        from torchvision import models
    except ImportError as e:
        raise RunError(f'model "{name}" comes from torchvision, which cannot be imported: {e}', "configuration") from e
    # Do not initialise the weights of Inception, which takes half a minute. The caller loads weights later.
    options = {"init_weights": False, "aux_logits": True, "transform_input": False} if name == "inception_v3" else {}
    return getattr(models, name)(num_classes=classes, **options)


def blocks_of(model):
    """Returns a ResNet as a list of modules, each with one input and one output, that run one after another."""
    if isinstance(model, ResNetCifar):
        first = nn.Sequential(model.conv, model.norm, nn.ReLU(inplace=True))
        return [first, *(getattr(model, name) for name in model.blocks), nn.Sequential(_MeanOfPixels(), model.linear)]
    if not hasattr(model, "layer1"):
        raise RunError("this model cannot be divided into stages: use a ResNet, or another engine", "configuration")
    first = nn.Sequential(model.conv1, model.bn1, model.relu, model.maxpool)
    layers = [*model.layer1, *model.layer2, *model.layer3, *model.layer4]
    return [first, *layers, nn.Sequential(model.avgpool, nn.Flatten(), model.fc)]


def load(model, parameters):
    state = {name: torch.from_numpy(array) for name, array in parameters.items()}
    try:
        missing, unexpected = model.load_state_dict(state, strict=False)
    except RuntimeError as e:  # a shape that does not fit
        raise RunError(f"the native engines' initial weights do not fit this model: {e}", "configuration") from e
    # Ignore PyTorch's counts of batches in batch normalisation, which are not used here.
    missing = [name for name in missing if not name.endswith("num_batches_tracked")]
    if missing or unexpected:
        raise RunError(
            f"the native engines' initial weights do not fit this model: missing {missing[:3]}, unknown {unexpected[:3]}",
            "configuration",
        )


def loss_and_logits(output, labels):
    """Returns (mean cross entropy, logits) of a model's output. The weight of Inception's auxiliary head is 0.4 (Szegedy et al. 2015)."""
    if isinstance(output, tuple):
        logits, aux = output[0].float(), output[1].float()
        return F.cross_entropy(logits, labels) + 0.4 * F.cross_entropy(aux, labels), logits
    logits = output.float()
    return F.cross_entropy(logits, labels), logits
