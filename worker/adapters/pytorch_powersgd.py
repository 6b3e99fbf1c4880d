"""Engine pytorch/powersgd: DistributedDataParallel with its PowerSGD communication hook (Vogels et al. 2019)."""
from scalelab import choices, training

with training.importing("pytorch/powersgd"):
    import torch
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    from pytorch_ddp import PytorchDdp

# The hook cannot compress the first two steps, in which DDP rebuilds its buckets.
FIRST_STEP = 2
# The hook compresses a matrix only if the compressed form is smaller by at least this factor.
LEAST_RATIO = 2
# The state that the hook keeps from step to step, except its random numbers: the error of each bucket, both factors,
# and the step.
_HOOK = ("error_dict", "p_memory_dict", "q_memory_dict", "iter")


class PytorchPowerSgd(PytorchDdp):
    name = "pytorch/powersgd"

    def join(self):
        # The hook adds errors to the gradients of the next step, whose scale amp-fp16 may change.
        choices.check_precision(self.spec, self.device.type == "cuda", gpu_precisions=("tf32",))
        super().join()

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
    """Calls PowerSGD's hook for one bucket at a time, for Gloo. The hook starts further operations in callbacks. Gloo's threads
    run callbacks in any order, so operations of different buckets would be mixed. As buckets wait for each other, communication
    does not overlap with backward."""
    future = powerSGD_hook.powerSGD_hook(state, bucket)
    future.wait()
    return future


def _numbers(parameter, rank):
    """Returns the number of values of a gradient that the hook communicates, once it compresses."""
    if parameter.dim() < 2:
        return parameter.numel()
    rows = parameter.size(0)
    factors = (rows + parameter.numel() // rows) * rank
    return factors if factors * LEAST_RATIO < parameter.numel() else parameter.numel()


if __name__ == "__main__":
    training.run(PytorchPowerSgd)
