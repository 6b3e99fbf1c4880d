"""The models of the comparison as Keras models, for Keras 2 (tf.keras) and Keras 3 on each of its backends.

All of them are made of Keras' functional API by the `Network` of network.py, which also takes weights in and gives
them back under the native engine's names and in PyTorch's layout. One file a family; names stand in MODELS.
"""
from scalelab.keras_models import cifar_resnet, feature_nets, inception, mobilenet, resnet
from scalelab.keras_models.network import Network

# Name in RunSpec.model -> function(network, images, classes) -> list of logits, the model's own first.
MODELS = {
    **{f"resnet{depth}": cifar_resnet.builder(depth) for depth in cifar_resnet.DEPTHS},
    **{f"resnet{depth}": resnet.builder(depth) for depth in resnet.PLANS},
    "mobilenet_v2": mobilenet.build,
    "alexnet": feature_nets.alexnet,
    "vgg16": feature_nets.vgg16,
    "inception_v3": inception.build,
}


def make(keras, name, side, classes, layout, dropout=True):
    """A Network of model `name` for images of `side` x `side` pixels.

    `keras` is the module to build with (tf.keras or keras), `layout` "NHWC" or "NCHW". Without `dropout` its layers
    are left out, so that a training step can be compared with another engine's.
    """
    if name not in MODELS:
        raise ValueError(f'model "{name}" is none of {", ".join(sorted(MODELS))}')
    network = Network(keras, side, layout, dropout)
    network.finish(MODELS[name](network, network.images, classes))
    return network
