"""Device, precision and clocks of the PyTorch engines."""
import contextlib
import time

import numpy as np
import torch

from . import choices, loss_scale
from .errors import RunError


def choose_device(spec, local_rank):
    """Returns the device of the rank: GPU `local_rank`, or the CPU if the run does not use GPUs."""
    if not choices.needs_gpu(spec):
        return torch.device("cpu")
    if torch.cuda.device_count() <= local_rank:
        choices.refuse_without_gpu(spec, f"torch {torch.__version__}", torch.cuda.device_count(), local_rank)
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def choose_backend(spec, device, of_cpu="gloo", of_gpu="nccl"):
    """Returns the communication library; "auto" selects the default of the device."""
    known = (of_cpu, of_gpu)
    if spec.backend == "auto":
        return of_gpu if device.type == "cuda" else of_cpu
    if spec.backend not in known or (spec.backend == "nccl" and device.type != "cuda"):
        where = " on a GPU" if spec.backend == "nccl" else ""
        raise RunError(
            f'engine {spec.engine} takes backend "{of_cpu}", or "nccl" on a GPU, not "{spec.backend}"{where and " without one"}',
            "configuration",
        )
    return spec.backend


class Precision:
    """Implements RunSpec.precision: autocast for forward passes, loss scaling, TensorFloat-32."""

    def __init__(self, spec, device):
        choices.check_precision(spec, device.type == "cuda")
        self._device = device.type
        self._type = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}.get(spec.precision)
        self.scaler = None
        if spec.precision == "amp-fp16":
            # torch 2.3 moved GradScaler to torch.amp.
            new = hasattr(torch.amp, "GradScaler")
            self.scaler = torch.amp.GradScaler(self._device, loss_scale.FIRST) if new else torch.cuda.amp.GradScaler()
        if device.type == "cuda":
            # By default PyTorch uses TensorFloat-32 in float32 convolutions.
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = spec.precision == "tf32"
            torch.backends.cudnn.benchmark = True

    def scope(self):
        return torch.autocast(self._device, dtype=self._type) if self._type is not None else contextlib.nullcontext()


def configure_cpu(spec):
    torch.set_num_threads(spec.cpus_per_rank)
    torch.set_num_interop_threads(1)
    torch.set_flush_denormal(True)


def pinned(shape, dtype):
    """Returns an array in memory that is copied to a GPU without a further copy. PyTorch uses the memory again after the copy."""
    return torch.empty(shape, dtype=torch.from_numpy(np.empty(0, dtype)).dtype, pin_memory=True).numpy()


class Prefetcher:
    """Copies batches to a GPU and converts them there on a separate stream, so that this overlaps with earlier steps."""

    def __init__(self, device, convert):
        """`convert`(pixels, crops, augment) returns the images (torch_images.Conversion)."""
        self._device, self._convert, self._stream = device, convert, torch.cuda.Stream(device)

    def start(self, batch, labels, augment=True):
        """Starts to copy a ByteBatch and its labels. Any thread may call it."""
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            pixels, crops = (torch.from_numpy(t).to(self._device, non_blocking=True) for t in (batch.pixels, batch.crops))
            labels = torch.from_numpy(labels).pin_memory().to(self._device, non_blocking=True)
            return _Batch([self._convert(pixels, crops, augment), labels], self._stream.record_event())


class _Batch:
    """Tensors that are being copied and converted."""

    def __init__(self, tensors, ready):
        self._tensors, self._ready = tensors, ready

    def wait(self):
        """Returns the tensors. Makes the current stream wait for them; the caller does not wait."""
        stream = torch.cuda.current_stream()
        stream.wait_event(self._ready)
        for tensor in self._tensors:
            tensor.record_stream(stream)
        return self._tensors


class Readback:
    """Copies numbers from the device to the host without waiting for the device."""

    def __init__(self, *numbers):
        """`numbers` are tensors with one element each."""
        together = torch.stack([number.detach().double().reshape(()) for number in numbers])
        self._copy, self._ready = together.to("cpu", non_blocking=True), None
        if together.is_cuda:
            self._ready = torch.cuda.Event()
            self._ready.record()

    def numbers(self):
        """Waits for the numbers, but not for later work of the device, and returns them."""
        if self._ready is not None:
            self._ready.synchronize()
        return self._copy.tolist()


class HostClock:
    """Measures the parts of a step: each part ends at its mark and begins at the previous mark."""

    def __init__(self):
        self._times, self._last = {}, time.perf_counter()

    def mark(self, name):
        now = time.perf_counter()
        self._times[name] = self._times.get(name, 0.0) + now - self._last
        self._last = now

    def times(self):
        return self._times


class Stopwatch:
    """Adds up the seconds of its `with` blocks. If `device` is a GPU, the time of a block includes the work that it starts
    there."""

    def __init__(self, device=None):
        self._wait = device is not None and device.type == "cuda"
        self.seconds = 0.0

    def __enter__(self):
        self._begin = self._now()
        return self

    def __exit__(self, *error):
        self.seconds += self._now() - self._begin

    def _now(self):
        if self._wait:
            torch.cuda.synchronize()
        return time.perf_counter()

    def take(self):
        """Returns the seconds since the last call."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


class CudaClock:
    """Like HostClock, with events on the current stream as marks. Only `times` waits for the device."""

    def __init__(self, before):
        """`before` is the clock of the previous step, whose end is the beginning of this step. It is None after a pause."""
        self._begin = before.end if before is not None else self._record()
        self._marks = [(None, self._record())]  # the time before this mark is the wait for the batch
        self.end = self._begin

    @staticmethod
    def _record():
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def mark(self, name):
        self.end = self._record()
        self._marks.append((name, self.end))

    def times(self):
        self.end.synchronize()
        times = {"step/total_s": self._begin.elapsed_time(self.end) / 1000}
        for (_, begin), (name, end) in zip(self._marks, self._marks[1:]):
            times[name] = times.get(name, 0.0) + begin.elapsed_time(end) / 1000
        return times
