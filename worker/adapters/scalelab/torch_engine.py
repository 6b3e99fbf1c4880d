"""The base class of the PyTorch engines: model, SGD, precision and step. Subclasses average the gradients."""
import dataclasses
import os

import torch
from torch.nn import functional as F

from . import loss_scale, splitmix, torch_state, training
from .errors import RunError
from .models_torch import loss_and_logits, make_model
from .torch_device import CudaClock, HostClock, Precision, Prefetcher, Readback, choose_device, configure_cpu, pinned
from .torch_images import Conversion


class TorchEngine(training.Engine):
    """A PyTorch engine. A subclass connects to other ranks in `join`, wraps the model in `wrap`, and may override `backward`."""

    framework = "pytorch"
    gradient_bytes = 0  # number of bytes that are passed to the communication library in each step
    shared_state = ("parameters", "optimizer")  # the parts of the state that are equal on all ranks
    weights_follow_layout = True  # whether weights are channels last if the images are; False: always contiguous

    @staticmethod
    def version():
        return f"torch {torch.__version__}"

    def __init__(self, spec, data, rank, ranks, parameters):
        self.spec, self.rank, self.ranks, self.classes = spec, rank, ranks, data.classes
        configure_cpu(spec)
        self.device = choose_device(spec, int(os.environ.get("LOCAL_RANK", "0")))
        self.precision = Precision(spec, self.device)
        # "auto" is channels last, as in the native engines, because oneDNN and cuDNN are faster with it.
        last = spec.memory_format != "contiguous"
        self.layout = "NHWC" if last else "NCHW"
        self.join()
        self._side = data.side
        self.model = self.make_model(data, parameters)
        weights_last = last and self.weights_follow_layout
        self.model.to(self.device, memory_format=torch.channels_last if weights_last else torch.contiguous_format)
        self.wrapped = self.wrap(self.model)
        self.optimizer = self.wrap_optimizer(self.make_optimizer(self.model))
        self._prefetcher = None
        if self.device.type == "cuda":
            self.takes_bytes, data.empty = True, pinned
            self._prefetcher = Prefetcher(self.device, Conversion(data, spec.augment, last, self.device))
        self._clock = None
        self._scales = loss_scale.Log()
        if spec.compile:
            self._compile()
        elif spec.cuda_graph:
            raise RunError(
                f"engine {spec.engine} records only what torch.compile makes: add compile: true, or remove cuda_graph", "configuration"
            )
        self.seed_random_numbers()

    def seed_random_numbers(self):
        """Seeds the random numbers that the model draws, such as those of dropout. Each rank has its own."""
        torch.manual_seed(splitmix.seed32(self.spec.seed, self.rank))

    def join(self):
        """Connects to the other ranks."""

    def make_model(self, data, parameters):
        """Returns a module that maps images [n, 3, side, side] to logits. In training, a model with an auxiliary head returns the
        pair of both logits."""
        return make_model(self.spec.model, data.classes, parameters)

    def wrap(self, model):
        return model

    def wrap_optimizer(self, optimizer):
        return optimizer

    def make_optimizer(self, model):
        """Returns torch.optim.SGD: v = m * v + g + wd * p; p -= rate * v."""
        groups = [{"params": [], "weight_decay": self.spec.weight_decay}, {"params": [], "weight_decay": 0.0}]
        for parameter in model.parameters():
            groups[parameter.dim() < 2 and not self.spec.decay_norm]["params"].append(parameter)
        groups = [group for group in groups if group["params"]]
        optimizer = torch.optim.SGD(groups, lr=self.spec.learning_rate, momentum=self.spec.momentum, **self.sgd_kernels())
        if self.precision.scaler is not None and self.spec.momentum:
            # Fused SGD allocates the momentum in its first step. If that step is skipped, the momentum has no value.
            for parameter in (p for group in groups for p in group["params"] if p.requires_grad):
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return optimizer

    def sgd_kernels(self):
        """Returns the argument of torch.optim.SGD that selects its fastest kernels."""
        # Before torch 2.6, fused SGD fails for some weights that are channels last.
        return {"fused": True} if self.device.type == "cuda" and version_of_torch() >= (2, 6) else {"foreach": True}

    def _compile(self):
        """Compiles forward and backward. Collective: in the first step, ranks wait for ranks that compile longer."""
        if not hasattr(torch, "compile"):
            raise RunError(f"compile needs torch 2.1 or later, this is {torch.__version__}: remove it", "configuration")
        mode = "reduce-overhead" if self.spec.cuda_graph and self.device.type == "cuda" else None
        self.wrapped = torch.compile(self.wrapped, dynamic=False, mode=mode)
        self.pass_over_zeros()

    def pass_over_zeros(self):
        """Runs forward and backward on a batch of zeros, so that the framework prepares the structures of its first step. Does
        not change the state of the training. Collective."""
        side, batch = self._side, self.spec.batch_per_rank
        last = torch.channels_last if self.layout == "NHWC" else torch.contiguous_format
        images = torch.zeros(batch, 3, side, side, device=self.device).to(memory_format=last)
        labels = torch.zeros(batch, dtype=torch.int64, device=self.device)
        # Keras' statistics are parameters without gradients.
        kept = [*self.model.buffers(), *(p for p in self.model.parameters() if not p.requires_grad)]
        before = [tensor.detach().clone() for tensor in kept]
        with self.precision.scope():
            loss, _ = loss_and_logits(self.wrapped(images), labels)
        loss.backward()
        self.model.zero_grad(set_to_none=True)
        with torch.no_grad():
            for tensor, value in zip(kept, before):
                tensor.copy_(value)

    def prepare(self, images, labels):
        return images if self._prefetcher is None else self._prefetcher.start(images, labels), labels

    def to_device(self, images, labels):
        """Returns tensors on the device. `images` is a result of `prepare`."""
        if self._prefetcher is not None:
            return images.wait()
        images, labels = torch.from_numpy(images), torch.from_numpy(labels)
        if self.layout == "NHWC":
            images = images.permute(0, 3, 1, 2)  # the same memory, as PyTorch's channels_last
        return images, labels

    def new_clock(self):
        self._clock = CudaClock(self._clock) if self.device.type == "cuda" else HostClock()
        return self._clock

    def begin_step(self, images, labels, rate):
        """Returns (clock of the step, images and labels on the device)."""
        clock = self.new_clock()
        images, labels = self.to_device(images, labels)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.model.zero_grad(set_to_none=True)
        return clock, images, labels

    def step(self, images, labels, rate):
        clock, images, labels = self.begin_step(images, labels, rate)
        with self.precision.scope():
            loss, logits = loss_and_logits(self.wrapped(images), labels)
        clock.mark("step/forward_s")
        scaler = self.precision.scaler
        self.backward(loss if scaler is None else scaler.scale(loss), clock)
        metrics = {"comm/bytes": self.gradient_bytes}
        scale = None
        if scaler is None:
            self.apply()
        else:
            self.apply_scaled(scaler)
            scale = scaler._get_scale_async()  # get_scale() would wait for the device
        clock.mark("step/optimizer_s")
        correct = logits.detach().argmax(1).eq(labels).sum()
        readback = Readback(loss, correct, *([] if scale is None else [scale]))

        def result():
            loss, correct, *scales = readback.numbers()
            if scales:
                metrics.update(self._scales.of_step(*scales))
            return training.StepResult(loss, correct, clock.times(), metrics)

        return result if self.device.type == "cuda" else result()

    def backward(self, loss, clock):
        """Marks step/backward_s, and step/comm_exposed_s if the engine can detect when only communication remains."""
        loss.backward()
        clock.mark("step/backward_s")
        if self.ranks == 1:
            clock.mark("step/comm_exposed_s")  # one rank does not communicate

    def apply(self):
        self.optimizer.step()

    def apply_scaled(self, scaler):
        scaler.step(self.optimizer)
        scaler.update()

    def begin_evaluation(self):
        self._clock = None

    def evaluate(self, images, labels):
        if self._prefetcher is not None:
            images = self._prefetcher.start(images, labels, augment=False)
        images, labels = self.to_device(images, labels)
        model = self.evaluated_model()
        model.eval()
        with torch.no_grad():
            with self.precision.scope():
                logits = model(images)
            logits = logits.float()
            loss = F.cross_entropy(logits, labels, reduction="sum").item()
            correct = logits.argmax(1).eq(labels).sum().item()
        model.train()
        return loss, correct

    def evaluated_model(self):
        return self.model

    def sum_over_ranks(self, numbers):
        return list(numbers)

    def parameters(self):
        state = {name: t for name, t in self.model.state_dict().items() if not name.endswith("num_batches_tracked")}
        return {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in state.items()}

    def save(self, directory):
        self._clock = None  # the next step begins after a pause
        return torch_state.save(self.state(), self.shared_state, directory, self.rank)

    def load(self, directory):
        self.load_state(torch_state.load(directory, self.rank, self.device))

    def state(self):
        """Returns the state that training needs to continue, as a dict of parts: tensors, numbers, and dicts and lists of
        them."""
        model = self.stored_model()
        own = {name: b for name, b in model.named_buffers()}
        own.update((name, p.detach()) for name, p in model.named_parameters() if not p.requires_grad)  # Keras' statistics
        return {
            "parameters": {name: p.detach() for name, p in model.named_parameters() if p.requires_grad},
            "optimizer": self.stored_optimizer().state_dict(),
            "statistics": own,
            "random": torch_state.random(self.device),
            "scaler": {} if self.precision.scaler is None else self.precision.scaler.state_dict(),
            "scales": dataclasses.asdict(self._scales),
        }

    def stored_model(self):
        """Returns the module whose parameters and buffers are part of this rank's state."""
        return self.model

    def stored_optimizer(self):
        """Returns the optimizer whose state dict is part of this rank's state."""
        return self.optimizer

    def load_state(self, state):
        torch_state.assign(dict(self.stored_model().named_parameters()), {**state["parameters"], **state["statistics"]})
        self.stored_optimizer().load_state_dict(state["optimizer"])
        self.load_state_of_rank(state)

    def load_state_of_rank(self, state):
        """Loads the parts of the state that are neither parameters nor the optimizer's state."""
        torch_state.assign(dict(self.stored_model().named_buffers()), state["statistics"])
        if self.precision.scaler is not None:
            self.precision.scaler.load_state_dict(state["scaler"])
        self._scales = loss_scale.Log(**state["scales"])
        torch_state.set_random(self.device, state["random"])

    def device_model(self):
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else super().device_model()

    def run_metrics(self):
        if self.device.type != "cuda":
            return {}
        metrics = {"run/device_memory_bytes": torch.cuda.max_memory_allocated(self.device)}
        if self.precision.scaler is not None:
            metrics.update(self._scales.of_run())
        return metrics


def version_of_torch():
    return tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
