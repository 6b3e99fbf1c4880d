"""Engine pytorch/fsdp: fully sharded data parallelism with torch.distributed.fsdp.fully_shard (Zhao et al. 2023; FSDP2 in torch
2.6 and later). The engine also runs on CPUs over Gloo."""
from scalelab import training
from scalelab.errors import RunError

with training.importing("pytorch/fsdp"):
    import torch
    import torch.distributed as dist
    from torch import nn

    from scalelab import torch_state
    from scalelab.models_torch import make_model
    from scalelab.torch_group import GroupEngine

try:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
except Exception:  # pylint: disable=broad-except  # older versions raise different exceptions, depending on Python's version
    fully_shard = None


class PytorchFsdp(GroupEngine):
    """Gathers parameters within forward and backward. Their times include communication that cannot be separated, so this engine
    reports only the time of the optimizer, and no share of communication."""

    name = "pytorch/fsdp"
    shared_state = ()  # nothing is equal on all ranks, because each rank has its shards
    weights_follow_layout = False  # fully_shard accepts only contiguous parameters; images may be channels last

    def join(self):
        if fully_shard is None:
            raise RunError(
                f"pytorch/fsdp needs torch 2.6 or later, this is {torch.__version__}: deploy/frameworks pytorch2 makes one",
                "configuration",
            )
        super().join()

    def wrap(self, model):
        self._whole = None  # the model with all its parameters, for evaluation
        if self.ranks == 1:
            return model
        mesh = init_device_mesh(self.device.type, (self.ranks,))
        self.gradient_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
        for part in _parts(model):
            fully_shard(part, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    def sgd_kernels(self):
        # PyTorch has no fused SGD for shards (DTensor).
        return super().sgd_kernels() if self.ranks == 1 else {"foreach": True}

    def step(self, images, labels, rate):
        result = super().step(images, labels, rate)
        if self.ranks == 1:
            return result
        return (lambda: _without_parts(result())) if callable(result) else _without_parts(result)

    def begin_evaluation(self):
        super().begin_evaluation()
        if self.ranks > 1:
            # Gather the whole model first, because gathering is collective and ranks may evaluate different numbers of batches.
            state = self.parameters()
            if self._whole is None:
                self._whole = make_model(self.spec.model, self.classes).to(self.device)
            self._whole.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()}, strict=False)

    def evaluated_model(self):
        return self._whole if self.ranks > 1 else self.model

    def parameters(self):
        if self.ranks == 1:
            return super().parameters()
        whole = {}
        for name, tensor in self.model.state_dict().items():
            if not name.endswith("num_batches_tracked"):
                tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # collective
                whole[name] = tensor.detach().cpu().contiguous().numpy()
        return whole

    def state(self):
        # Store shards as plain tensors. PyTorch cannot load tensors of a device mesh without running code from the file.
        state = super().state()
        if self.ranks > 1:
            state["parameters"] = {name: p.to_local() for name, p in state["parameters"].items()}
            state["optimizer"] = [m.to_local() for m in self._momentum()]
        return state

    def load_state(self, state):
        if self.ranks == 1:
            return super().load_state(state)
        shards = {name: p.to_local() for name, p in self.model.named_parameters()}
        torch_state.assign(shards, state["parameters"])
        torch_state.assign(dict(enumerate(m.to_local() for m in self._momentum())), dict(enumerate(state["optimizer"])))
        super().load_state_of_rank(state)

    def _momentum(self):
        """Returns SGD's momentum, which starts as zeros."""
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        if self.spec.momentum == 0:
            return []
        for p in parameters:
            if self.optimizer.state[p].get("momentum_buffer") is None:
                self.optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p, requires_grad=False)
        return [self.optimizer.state[p]["momentum_buffer"] for p in parameters]

    def close(self):
        if self.ranks > 1:
            dist.barrier()  # some runs aborted when one rank left while others were still communicating
        super().close()


def _parts(module):
    """Yields the modules that are gathered separately: blocks of two or more convolutions, and layers with a million parameters or
    more. The root module gathers the rest."""
    for child in module.children():
        convolutions = sum(isinstance(m, nn.Conv2d) for m in child.modules())
        large = not list(child.children()) and sum(p.numel() for p in child.parameters()) >= 1_000_000
        if large or (convolutions >= 2 and not isinstance(child, nn.Sequential)):
            yield child
        else:
            yield from _parts(child)


def _without_parts(result):
    for name in ("step/forward_s", "step/backward_s"):
        result.times.pop(name, None)
    return result


if __name__ == "__main__":
    training.run(PytorchFsdp)
