"""The part of models_test.py that runs in the environment of a framework: `forward.py KIND DIRECTORY MODEL...`.

KIND is torch, keras2, tensorflow, jax, keras-torch or mxnet. torch writes DIRECTORY/MODEL.npz: a model's weights, images, and the
logits in evaluation mode, including those of an auxiliary head. The other kinds read that file, compute the logits with the same
weights, and print a line `MODEL DIFFERENCE` with the largest difference as a fraction of the largest logit.
"""
import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "worker", "adapters"))

# Side length of the images. Small images also test how odd sizes are rounded. Inception's auxiliary head needs images
# of the usual size.
SIDES = {"alexnet": 96, "vgg16": 48, "inception_v3": 299}
CLASSES = 10


def side_of(model):
    return SIDES.get(model, 32 if model in ("resnet8", "resnet20", "resnet32", "resnet44", "resnet56") else 65)


def write(name, path):
    import torch

    from scalelab import models_torch

    torch.manual_seed(1)
    model = models_torch.make_model(name, CLASSES).eval()
    for key, tensor in model.state_dict().items():
        if key.endswith("running_mean"):
            tensor.normal_(0, 0.1)
        elif key.endswith("running_var"):
            tensor.uniform_(0.8, 1.2)
        elif tensor.dim() == 1:
            tensor.add_(torch.empty_like(tensor).uniform_(-0.1, 0.1))
        elif name == "inception_v3" and tensor.dim() > 1:
            torch.nn.init.kaiming_normal_(tensor)  # with the default initialisation the logits are almost zero
    images = torch.randn(2, 3, side_of(name), side_of(name))
    outputs, kept = [], {}
    with torch.no_grad():
        if name == "inception_v3":
            model.Mixed_6e.register_forward_hook(lambda module, inputs, output: kept.update(features=output))
        outputs.append(model(images))
        if kept:
            outputs.append(model.AuxLogits(kept["features"]))
    weights = {key: t.numpy() for key, t in model.state_dict().items() if not key.endswith("num_batches_tracked")}
    logits = {f"output{i}": output.numpy() for i, output in enumerate(outputs)}
    np.savez(path, images=images.numpy(), **logits, **{"=" + key: weight for key, weight in weights.items()})


def keras_outputs(backend, name, images, weights):
    if backend == "keras2":
        from tensorflow import keras
    else:
        os.environ["KERAS_BACKEND"] = backend
        import keras
    from scalelab import keras_models

    layout = "NCHW" if backend == "torch" else "NHWC"
    network = keras_models.make(keras, name, images.shape[2], CLASSES, layout)
    network.load(weights)
    for key, variable in {**network.variables(), **network.variables(trainable=False)}.items():
        value = variable.numpy() if backend == "keras2" else keras.ops.convert_to_numpy(variable)
        assert (network.to_native(key, value) == weights.pop(key)).all(), f"{key} does not come back as it went"
    assert not weights, f"the Keras model has no {list(weights)}"
    # A call computes one layer after another. predict_on_batch would compile the model first, which takes minutes
    # for deep models.
    outputs = network.model(images if layout == "NCHW" else images.transpose(0, 2, 3, 1), training=False)
    outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    return [output.numpy() if backend == "keras2" else keras.ops.convert_to_numpy(output) for output in outputs]


def mxnet_outputs(name, images, weights):
    import mxnet

    from scalelab import models_mxnet

    net = models_mxnet.make(name, CLASSES)
    net.load(weights, mxnet.cpu())
    return [net(mxnet.nd.array(images)).asnumpy()]


def difference(kind, name, path):
    with np.load(path) as file:
        images = file["images"]
        expected = [file[f"output{i}"] for i in range(2) if f"output{i}" in file]
        weights = {key[1:]: file[key] for key in file.files if key.startswith("=")}
    if kind == "mxnet":
        outputs = mxnet_outputs(name, images, weights)
    else:
        outputs = keras_outputs(kind.replace("keras-", ""), name, images, weights)
    assert len(outputs) == len(expected)
    return max(float(abs(o - e).max() / abs(e).max()) for o, e in zip(outputs, expected))


def main(kind, directory, *models):
    for name in models:
        path = os.path.join(directory, name + ".npz")
        if kind == "torch":
            write(name, path)
        else:
            print(name, difference(kind, name, path), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
