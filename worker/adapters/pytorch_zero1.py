"""Engine pytorch/zero1: DistributedDataParallel with ZeroRedundancyOptimizer, which distributes the optimizer's state over the
ranks."""
from scalelab import training

with training.importing("pytorch/zero1"):
    import torch
    from torch.distributed.optim import ZeroRedundancyOptimizer

    from pytorch_ddp import PytorchDdp


class _TimedOptimizer(ZeroRedundancyOptimizer):
    """Marks the end of the update of this rank's shard, and the end of the exchange of the updated parameters."""

    engine = None

    def _sync_params(self):
        self.engine.mark("step/optimizer_s")
        super()._sync_params()
        self.engine.mark("step/comm_exposed_s")


class PytorchZero1(PytorchDdp):
    name = "pytorch/zero1"
    shared_state = ("parameters",)

    def make_optimizer(self, model):
        plain = super().make_optimizer(model)
        if self.ranks == 1:
            return plain
        groups = [{"params": group["params"], "weight_decay": group["weight_decay"]} for group in plain.param_groups]
        optimizer = _TimedOptimizer(
            groups,
            optimizer_class=torch.optim.SGD,
            lr=self.spec.learning_rate,
            momentum=self.spec.momentum,
            **self.sgd_kernels(),
        )
        optimizer.engine = self
        return optimizer

    def mark(self, name):
        self._clock.mark(name)

    def stored_optimizer(self):
        return self.optimizer if self.ranks == 1 else self.optimizer.optim  # `optim` has this rank's shard


if __name__ == "__main__":
    training.run(PytorchZero1)
