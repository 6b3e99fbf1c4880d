"""Engine pytorch/dp: torch.nn.DataParallel, one process that drives all GPUs of a node."""
from scalelab import training
from scalelab.errors import RunError

with training.importing("pytorch/dp", "pytorch"):
    import torch
    from torch import nn

    from scalelab.torch_engine import TorchEngine


class PytorchDp(TorchEngine):
    """Statistics of batch normalisation are each replica's own; the running ones are those of the first."""

    name = "pytorch/dp"
    one_process = True

    def join(self):
        # Elsewhere it falls through to the module, and would be measured as something it is not.
        if self.device.type != "cuda":
            raise RunError("pytorch/dp needs a GPU: nn.DataParallel has no replicas on a CPU; use pytorch/ddp", "configuration")
        if torch.cuda.device_count() < self.ranks:
            raise RunError(
                f"pytorch/dp was asked for {self.ranks} replicas, but this node shows {torch.cuda.device_count()} GPUs",
                "configuration",
            )
        if self.spec.backend != "auto":
            raise RunError(f'pytorch/dp has no backend "{self.spec.backend}": leave it out', "configuration")

    def wrap(self, model):
        return nn.DataParallel(_InPrecision(model, self.precision), device_ids=list(range(self.ranks)))


class _InPrecision(nn.Module):
    """Replicas run in threads of their own, where autocast is on if it is outside, but always to float16: so it is set here."""

    def __init__(self, model, precision):
        super().__init__()
        self.model, self.precision = model, precision

    def forward(self, images):
        with self.precision.scope():
            return self.model(images)


if __name__ == "__main__":
    training.run(PytorchDp)
