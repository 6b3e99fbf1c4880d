"""Engine pytorch/local-sgd: post-local SGD (Lin et al. 2020) with PyTorch's PostLocalSGDOptimizer, PeriodicModelAverager and DDP hook.

PyTorch averages in steps local_start_step + i * local_steps, where i = 0, 1, 2, ... This is one step earlier than
native/local-sgd.
"""
from scalelab import training

with training.importing("pytorch/local-sgd"):
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    from pytorch_ddp import PytorchDdp


class PytorchLocalSgd(PytorchDdp):
    name = "pytorch/local-sgd"
    shared_state = ()  # between two averages, ranks have different parameters and momentum
    # PyTorch's averager replaces the weights by contiguous ones, and fused SGD needs weights and momentum with equal strides.
    weights_follow_layout = False

    def wrap(self, model):
        wrapped = super().wrap(model)
        if self.ranks > 1:
            self._hook = state = post_localSGD_hook.PostLocalSGDState(
                process_group=None,
                subgroup=dist.group.WORLD,
                start_localSGD_iter=self.spec.local_start_step,
                post_local_gradient_allreduce=False,
            )
            wrapped.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
            self._bytes = self.gradient_bytes  # of the gradients, and of the parameters
        return wrapped

    def wrap_optimizer(self, optimizer):
        if self.ranks == 1:
            return optimizer
        averager = PeriodicModelAverager(period=self.spec.local_steps, warmup_steps=self.spec.local_start_step)
        return PostLocalSGDOptimizer(optim=optimizer, averager=averager)

    def begin_step(self, images, labels, rate):
        if self.ranks > 1:
            averager = self.optimizer.averager
            local_steps = averager.step - averager.warmup_steps
            # Before local_start_step, ranks average gradients, and later the parameters in every `period` steps.
            self.gradient_bytes = self._bytes if local_steps < 0 or local_steps % averager.period == 0 else 0
        return super().begin_step(images, labels, rate)

    def apply(self):
        if self.ranks == 1:
            super().apply()
            return
        self.optimizer.optim.step()
        self._average_periodically()

    def apply_scaled(self, scaler):
        if self.ranks == 1:
            super().apply_scaled(scaler)
            return
        # A rank skips its own steps with infinite gradients, but it averages in the same steps as all others.
        scaler.step(self.optimizer.optim)
        scaler.update()
        self._average_periodically()

    def _average_periodically(self):
        """Does the second part of PostLocalSGDOptimizer.step. Its time is that of communication."""
        self._clock.mark("step/optimizer_s")
        self.optimizer.averager.average_parameters(params=self.optimizer.param_groups)
        self._clock.mark("step/comm_exposed_s")

    def state(self):
        return {**super().state(), "hook": {"iter": self._hook.iter if self.ranks > 1 else 0}}

    def load_state(self, state):
        super().load_state(state)
        if self.ranks > 1:
            # PostLocalSGDOptimizer.load_state_dict replaces only the groups of the inner optimizer, and learning rates are set in these.
            self.optimizer.param_groups = self.optimizer.optim.param_groups
            self._hook.iter = state["hook"]["iter"]

    def begin_evaluation(self):
        self._average()
        super().begin_evaluation()

    def parameters(self):
        self._average()
        return super().parameters()

    def _average(self):
        """Averages the parameters outside of a step, so that all ranks evaluate and save the same model."""
        if self.ranks == 1:
            return
        with torch.no_grad():
            for parameter in self.model.parameters():
                dist.all_reduce(parameter)
                parameter /= self.ranks


if __name__ == "__main__":
    training.run(PytorchLocalSgd)
