"""The models of all engines as Keras models, for Keras 2 (tf.keras) and Keras 3 on each of its backends.

`Network` of network.py builds them with Keras' functional API. It also loads and returns weights with the names of the native
engines and in PyTorch's layout. Each family of models has one file; MODELS lists the names.
"""
from scalelab.keras_models import cifar_resnet, feature_nets, inception, mobilenet, resnet
from scalelab.keras_models.network import Network

# Maps names in RunSpec.model to functions: function(network, images, classes) returns a list of logits, the main head first.
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

    `keras` is tf.keras or keras, and `layout` is "NHWC" or "NCHW". If `dropout` is False, the model has no dropout layers, so
    that a training step can be compared with another engine.
    """
    if name not in MODELS:
        raise ValueError(f'model "{name}" is none of {", ".join(sorted(MODELS))}')
    network = Network(keras, side, layout, dropout)
    network.finish(MODELS[name](network, network.images, classes))
    return network
