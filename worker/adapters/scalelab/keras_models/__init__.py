"""The models of the comparison as Keras models, for Keras 2 (tf.keras) and Keras 3 on each of its backends.

They are built with Keras' functional API by the `Network` of network.py, which also loads and returns weights under the native
engine's names and in PyTorch's layout. Each family of models has one file; MODELS lists the names.
"""
from scalelab.keras_models import cifar_resnet, feature_nets, inception, mobilenet, resnet
from scalelab.keras_models.network import Network

# Name in RunSpec.model -> function(network, images, classes) -> list of logits, those of the main head first.
MODELS = {
    **{f"resnet{depth}": cifar_resnet.builder(depth) for depth in cifar_resnet.DEPTHS},
    **{f"resnet{depth}": resnet.builder(depth) for depth in resnet.PLANS},
    "mobilenet_v2": mobilenet.build,
    "alexnet": feature_nets.alexnet,
    "vgg16": feature_nets.vgg16,
    "inception_v3": inception.build,
}


def make(keras, name, side, classes, layout, dropout=True):
    """Returns a Network with model `name` for images of `side` x `side` pixels.

    `keras` is tf.keras or keras, `layout` is "NHWC" or "NCHW". `dropout` = False omits the dropout layers, so that a training step
    can be compared with that of another engine.
    """
    if name not in MODELS:
        raise ValueError(f'model "{name}" is none of {", ".join(sorted(MODELS))}')
    network = Network(keras, side, layout, dropout)
    network.finish(MODELS[name](network, network.images, classes))
    return network
