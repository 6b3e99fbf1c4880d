"""Engine keras/pytorch: Keras 3 on PyTorch, whose models are modules that DistributedDataParallel can wrap."""
import contextlib
import os

from scalelab import splitmix, training

with training.importing("keras/pytorch"):
    import torch
    import torch.distributed as dist

    from pytorch_ddp import PytorchDdp
    from scalelab.loss_scale import KERAS_POLICIES
    from scalelab.torch_device import Precision


class _KerasPrecision(Precision):
    """Disables autocast, because Keras' policy determines the data types."""

    def scope(self):
        return contextlib.nullcontext()


class _Module(torch.nn.Module):
    """Passes the module's training mode to Keras as an argument."""

    def __init__(self, network):
        super().__init__()
        self.keras_model = network.model

    def forward(self, images):
        outputs = self.keras_model(images, training=self.training)
        if not isinstance(outputs, (list, tuple)):
            return outputs
        return tuple(outputs) if self.training and len(outputs) > 1 else outputs[0]


class KerasPytorch(PytorchDdp):
    name = "keras/pytorch"
    framework = "keras"
    weights_follow_layout = False  # the last axis of Keras' kernels is the output channel

    @staticmethod
    def version():
        import keras

        return f"keras {keras.__version__}, torch {torch.__version__}"

    def join(self):
        super().join()
        self.precision = _KerasPrecision(self.spec, self.device)

    def make_model(self, data, parameters):
        os.environ["KERAS_BACKEND"] = "torch"
        os.environ["KERAS_TORCH_DEVICE"] = self.device.type
        with training.importing(self.name):
            import keras

            from scalelab import keras_models

        keras.config.set_dtype_policy(KERAS_POLICIES.get(self.spec.precision, "float32"))
        keras.utils.set_random_seed(splitmix.seed32(self.spec.seed))  # for dropout; the weights are loaded
        # A PyTorch tensor has the shape [n, channels, height, width] in both memory layouts.
        self._network = keras_models.make(keras, self.spec.model, data.side, data.classes, "NCHW")
        self._network.load(parameters)
        return _Module(self._network)

    def wrap(self, model):
        wrapped = super().wrap(model)
        if self.ranks > 1:
            self.gradient_bytes = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
            # DDP has copied rank 0's seeds of dropout: for PyTorch they are parameters without gradients.
            for variable in self._network.seeds():
                seed, counter = variable.value.tolist()
                variable.assign([splitmix.seed32(seed, self.rank), counter])
        return wrapped

    def begin_evaluation(self):
        super().begin_evaluation()
        if self.ranks > 1:
            # DDP does not synchronise the statistics: for PyTorch they are parameters without gradients, not buffers.
            for statistics in self._network.variables(trainable=False).values():
                dist.broadcast(statistics.value.data, 0)

    def parameters(self):
        variables = {**self._network.variables(), **self._network.variables(trainable=False)}
        return {name: self._network.to_native(name, v.value.detach().cpu()) for name, v in variables.items()}


if __name__ == "__main__":
    training.run(KerasPytorch)
