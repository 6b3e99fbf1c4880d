"""Engine pytorch/ddp: torch.nn.parallel.DistributedDataParallel (Li et al. 2020), used as in its tutorials."""
from scalelab import training

with training.importing("pytorch/ddp"):
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from scalelab.torch_group import GroupEngine


class PytorchDdp(GroupEngine):
    name = "pytorch/ddp"

    def wrap(self, model):
        if self.ranks == 1:
            return model
        self.gradient_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
        return DistributedDataParallel(
            model,
            device_ids=[self.device.index] if self.device.type == "cuda" else None,
            bucket_cap_mb=self.spec.bucket_cap_mib,
            find_unused_parameters=self.spec.find_unused_parameters,
            static_graph=self.spec.static_graph,
            broadcast_buffers=False,  # begin_evaluation copies rank 0's running statistics, which training does not use
            gradient_as_bucket_view=True,
        )

    def load(self, directory):
        if self.ranks > 1:
            # DDP reorders its buckets after its first pass, and this order determines the order of additions with
            # more than two ranks. Make a first pass before loading the checkpoint, because the interrupted attempt
            # has reordered its buckets too.
            self.pass_over_zeros()
        super().load(directory)

    def backward(self, loss, clock):
        if self.ranks == 1:
            return super().backward(loss, clock)
        # The autograd engine runs its callbacks in order when all gradients are computed. DDP's callback waits for the buckets.
        # DDP adds it at the last gradient, so the callback that is added here runs before DDP's.
        engine = torch.autograd.Variable._execution_engine
        loss.register_hook(lambda _: engine.queue_callback(lambda: clock.mark("step/backward_s")))
        loss.backward()
        clock.mark("step/comm_exposed_s")


if __name__ == "__main__":
    training.run(PytorchDdp)
