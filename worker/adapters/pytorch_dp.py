"""Engine pytorch/dp: torch.nn.DataParallel, one process that drives all GPUs of a node."""
from scalelab import training
from scalelab.errors import RunError

with training.importing("pytorch/dp"):
    import torch
    from torch import nn

    from scalelab import splitmix
    from scalelab.torch_engine import TorchEngine


class PytorchDp(TorchEngine):
    """Each replica computes its own batch statistics; the running statistics are those of the first replica."""

    name = "pytorch/dp"
    one_process = True

    def join(self):
        # On a CPU, DataParallel calls the module directly, so a run would not measure DataParallel.
        if self.device.type != "cuda":
            raise RunError("pytorch/dp needs a GPU: nn.DataParallel has no replicas on a CPU; use pytorch/ddp", "configuration")
        if torch.cuda.device_count() < self.ranks:
            raise RunError(
                f"pytorch/dp needs one GPU for each of {self.ranks} replicas, but this node has {torch.cuda.device_count()}",
                "configuration",
            )
        if self.spec.backend != "auto":
            raise RunError(f'pytorch/dp has no backend "{self.spec.backend}": leave it out', "configuration")

    def seed_random_numbers(self):
        super().seed_random_numbers()
        # PyTorch has given all GPUs the same seed. The replicas would draw equal numbers.
        for replica in range(1, self.ranks):
            torch.cuda.default_generators[replica].manual_seed(splitmix.seed32(self.spec.seed, replica))

    def wrap(self, model):
        return nn.DataParallel(_InPrecision(model, self.precision), device_ids=list(range(self.ranks)))


class _InPrecision(nn.Module):
    """Sets autocast in each replica's thread. If autocast is enabled outside, DataParallel would enable it there with float16."""

    def __init__(self, model, precision):
        super().__init__()
        self.model, self.precision = model, precision

    def forward(self, images):
        with self.precision.scope():
            return self.model(images)


if __name__ == "__main__":
    training.run(PytorchDp)
