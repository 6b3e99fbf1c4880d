"""Engine horovod/pytorch: Horovod's DistributedOptimizer (Sergeev and Del Balso 2018) over PyTorch."""
from scalelab import horovod, training
from scalelab.errors import RunError

with training.importing("horovod/pytorch"):
    import horovod.torch as hvd
    import torch

    from scalelab.torch_device import choose_backend
    from scalelab.torch_engine import TorchEngine


class HorovodPytorch(TorchEngine):
    name = "horovod/pytorch"
    weights_follow_layout = False  # Horovod accepts only contiguous gradients; images may be channels last

    @staticmethod
    def version():
        import horovod as package

        return f"horovod {package.__version__}, torch {torch.__version__}"

    def join(self):
        backend = choose_backend(self.spec, self.device, of_cpu="mpi")
        if backend == "nccl" and not hvd.nccl_built():
            raise RunError(
                'this Horovod was built without NCCL: use backend "mpi", or an environment that was built with it',
                "configuration",
            )
        horovod.configure(self.spec)
        hvd.init()
        if (hvd.rank(), hvd.size()) != (self.rank, self.ranks):
            raise RunError(
                f"Horovod sees this process as rank {hvd.rank()} of {hvd.size()}, not {self.rank} of {self.ranks}: start the "
                "ranks with a launcher of the MPI that Horovod was built for",
                "rendezvous",
            )

    def wrap_optimizer(self, optimizer):
        if self.ranks == 1:
            return optimizer
        half = self.spec.gradient_compression == "fp16"
        self.gradient_bytes = sum(p.numel() * (2 if half else p.element_size()) for p in self.model.parameters())
        return hvd.DistributedOptimizer(
            optimizer,
            named_parameters=self.model.named_parameters(),
            compression=hvd.Compression.fp16 if half else hvd.Compression.none,
        )

    def backward(self, loss, clock):
        super().backward(loss, clock)
        if self.ranks > 1:
            self.optimizer.synchronize()
            clock.mark("step/comm_exposed_s")

    def apply(self):
        if self.ranks == 1:
            return super().apply()
        with self.optimizer.skip_synchronize():
            self.optimizer.step()

    def apply_scaled(self, scaler):
        if self.ranks == 1:
            return super().apply_scaled(scaler)
        with self.optimizer.skip_synchronize():
            super().apply_scaled(scaler)

    def begin_evaluation(self):
        super().begin_evaluation()
        hvd.broadcast_parameters(dict(self.model.named_buffers()), root_rank=0)

    def sum_over_ranks(self, numbers):
        return hvd.allreduce(torch.tensor(numbers, dtype=torch.float64), op=hvd.Sum).tolist()

    def close(self):
        hvd.shutdown()


if __name__ == "__main__":
    training.run(HorovodPytorch)
