"""Engine pytorch/powersgd: DistributedDataParallel with its PowerSGD communication hook (Vogels et al. 2019)."""
from scalelab import training

with training.importing("pytorch/powersgd", "pytorch"):
    import torch
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    from pytorch_ddp import PytorchDdp

# The hook cannot compress the first two steps, in which DDP rebuilds its buckets.
FIRST_STEP = 2
# It compresses a matrix only if that makes it this many times smaller.
LEAST_RATIO = 2
# What the hook keeps from step to step besides its random numbers: the error that each bucket leaves out, both factors, the step.
_HOOK = ("error_dict", "p_memory_dict", "q_memory_dict", "iter")


class PytorchPowerSgd(PytorchDdp):
    name = "pytorch/powersgd"

    def wrap(self, model):
        wrapped = super().wrap(model)
        if self.ranks == 1:
            return wrapped
        rank = self.spec.powersgd_rank
        self._hook = state = powerSGD_hook.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=rank,
            start_powerSGD_iter=max(FIRST_STEP, self.spec.compression_start_step),
            min_compression_rate=LEAST_RATIO,
        )
        wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook if self.device.type == "cuda" else _one_bucket_at_a_time)
        self.gradient_bytes = sum(_numbers(p, rank) * p.element_size() for p in model.parameters())
        return wrapped

    def state(self):
        state = super().state()
        if self.ranks > 1:
            state["hook"] = {name: getattr(self._hook, name) for name in _HOOK}
            _, keys, *numbers = self._hook.rng.get_state()
            state["hook"]["rng"] = [torch.from_numpy(keys.astype("int64")), *numbers]
        return state

    def load_state(self, state):
        super().load_state(state)
        if self.ranks > 1:
            for name in _HOOK:
                setattr(self._hook, name, state["hook"][name])
            keys, *numbers = state["hook"]["rng"]
            self._hook.rng.set_state(("MT19937", keys.cpu().numpy().astype("uint32"), *numbers))


def _one_bucket_at_a_time(state, bucket):
    """PowerSGD's hook for Gloo. The hook starts further operations in callbacks, which Gloo's threads run in any order, so that
    operations of different buckets would meet. Buckets therefore wait for each other, and communication is not overlapped."""
    future = powerSGD_hook.powerSGD_hook(state, bucket)
    future.wait()
    return future


def _numbers(parameter, rank):
    """Returns how many numbers of a gradient the hook communicates once it compresses."""
    if parameter.dim() < 2:
        return parameter.numel()
    rows = parameter.size(0)
    factors = (rows + parameter.numel() // rows) * rank
    return factors if factors * LEAST_RATIO < parameter.numel() else parameter.numel()


if __name__ == "__main__":
    training.run(PytorchPowerSgd)
