"""Reports the events of a training script of engine `custom`. Needs only the standard library.

    with scalelab.run() as run:
        for batch in batches:
            run.step(loss=train(batch))
        run.epoch(accuracy=evaluate())

docs/users/write-a-training-script.md describes the event file that this module writes.
"""
from __future__ import annotations

import array
import contextlib
import errno
import json
import math
import operator
import os
import platform
import resource
import statistics
import sys
import time
from types import TracebackType
from typing import Any, Iterable, Mapping, Optional, SupportsFloat, SupportsIndex

# Seconds between two writes of step lines: one write contains many steps.
FLUSH_AFTER = 0.5
LINE_LIMIT = 64 << 10
MESSAGE_LIMIT = 4000
# The start event contains the version of the first of these frameworks that the script has imported.
_FRAMEWORKS = ("torch", "tensorflow", "jax", "mxnet")
# The parameters of a run that are 64-bit integers.
_WHOLE_64 = ("train_samples", "max_steps", "seed", "compression_start_step", "local_start_step", "checkpoint_every_steps")

Metrics = Mapping[str, Optional[SupportsFloat]]


def run(*, total_steps: int | None = None, global_batch: int | None = None, resumed_step: SupportsIndex = 0,
        resumed_epoch: SupportsIndex = 0, device: str | None = None) -> Run:
    """Returns the run of this process, for a `with` statement.

    The progress is shown relative to `total_steps`, whose default is `max_steps` of the study. The throughput is computed from
    `global_batch`, the number of samples in a step over all ranks. Its default is the global batch of the study. If the script
    does not run under scalelab (SCALELAB_EVENTS is not set), nothing is written, so the script also works by itself.

    A script that continues from a checkpoint must pass `resumed_step`, the number of steps that the checkpoint contains, and, if
    it reports epochs, `resumed_epoch`, the number of complete epochs that the checkpoint contains. The numbers of its steps and
    epochs begin with these values. Raises ValueError if one of them is negative.

    `device` is the model of the GPU or CPU that computes, for example `torch.cuda.get_device_name()`. Runs on different devices
    are in different series of a curve.
    """
    return Run(os.environ, total_steps=total_steps, global_batch=global_batch, resumed_step=resumed_step,
               resumed_epoch=resumed_epoch, device=device)


class Run:
    """The run of which this process is a rank. Not thread-safe.

    Attributes:
        active: whether the script runs under scalelab.
        rank, local_rank, world_size: this rank, its index on this node, and the number of ranks.
        spec: the run's parameters by name (docs/users/keys.md), with all defaults; empty outside of scalelab.
        directory: the directory of the attempt, the same on all nodes; the working directory outside of scalelab.
        parameter_hash: a text that must be equal on all ranks at the end, otherwise the run fails; empty means no check.
    """

    def __init__(self, environment: Mapping[str, str], *, total_steps: int | None = None, global_batch: int | None = None,
                 resumed_step: SupportsIndex = 0, resumed_epoch: SupportsIndex = 0, device: str | None = None) -> None:
        """Has the arguments of `run`. `environment` has the variables of the rank."""
        self.rank = int(environment.get("RANK", "0"))
        self.local_rank = int(environment.get("LOCAL_RANK", "0"))
        self.world_size = int(environment.get("WORLD_SIZE", "1"))
        self.spec = _read_spec(environment.get("SCALELAB_SPEC"))
        self.directory = environment.get("SCALELAB_ATTEMPT_DIR") or os.getcwd()
        self.parameter_hash = ""
        self._resumed_step = _count("resumed_step", resumed_step)
        self._step, self._epoch = self._resumed_step, _count("resumed_epoch", resumed_epoch)
        self._device = device
        path = environment.get("SCALELAB_EVENTS")
        self.active = bool(path)
        self._file = _EventFile(path) if path else None
        self._total_steps = total_steps if total_steps is not None else int(self.spec.get("max_steps", 0))
        self._global_batch = global_batch if global_batch is not None else int(self.spec.get("global_batch", 0))
        self._started = self._ended = False
        self._computed: dict[str, SupportsFloat | None] = {}  # results from epochs
        self._result: dict[str, SupportsFloat | None] = {}  # results that the script has set
        self._seconds = array.array("d")  # duration of each step
        self._epoch_begin = 0  # index of the first step of this epoch in _seconds
        self._losses: list[float] = []  # losses of this epoch
        self._mark = time.monotonic()
        self._begin = self._mark
        self._paused: float | None = None

    def __enter__(self) -> Run:
        self._begin = self._mark = time.monotonic()
        if self._total_steps > 0:
            self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
            self.finish()
        elif isinstance(error, SystemExit):
            self.error(f"the script ended with exit status {error.code}")
        else:
            self.error(*describe(error))

    def start(self, total_steps: int | None = None) -> None:
        """Reports the start, and begins to measure the time of the first step. A `with` statement calls `start` if the number of
        steps is known; otherwise the first `step` calls it. Only the first call has an effect."""
        if self._started:
            return
        self._started = True
        self._total_steps = total_steps if total_steps is not None else self._total_steps
        framework, version = _framework()
        more: dict[str, Any] = {"device": self._device} if self._device else {}
        if self._resumed_step > 0:
            more["resumed_step"] = self._resumed_step
        self._write("start", framework=framework, version=version, world_size=self.world_size, rank=self.rank,
                    total_steps=self._total_steps, **more)
        self._begin = self._mark = time.monotonic()

    def step(self, metrics: Metrics | None = None, /, **more: SupportsFloat | None) -> None:
        """Reports the end of a training step. `step/total_s` is the time since the end of the previous step, unless it is given.

        `loss=2.5` means `train/loss`, and `data_s=0.1` means `step/data_s`. Names with a slash must be in a mapping:
        `run.step({"train/grad_norm": norm}, loss=loss)`. Values that are None are left out.
        """
        self.steps(1, metrics, **more)

    def steps(self, count: int, metrics: Metrics | None = None, /, **more: SupportsFloat | None) -> None:
        """Reports the end of `count` training steps that the framework has executed together. Each step gets an equal part of the
        time since the last report, unless `step/total_s` is given. The metrics belong to the last of these steps. Raises
        ValueError if `count` is below 1.
        """
        if count < 1:
            raise ValueError(f"count is {count}; it must be at least 1")
        self.start()
        named = {**(metrics or {}), **{("step/" if key.endswith("_s") else "train/") + key: value for key, value in more.items()}}
        # The conversion of a tensor on a GPU waits for the computations of the step, so it is part of the step.
        values = {key: float(value) for key, value in named.items() if value is not None}
        seconds = values.get("step/total_s", (time.monotonic() - self._mark) / count)
        if "train/loss" in values:
            self._losses.append(values["train/loss"])
        for left in reversed(range(count)):
            self._seconds.append(seconds)
            reported = {"step/total_s": seconds} if left else {"step/total_s": seconds, **values}
            self._write("step", reported, epoch=self._epoch, step=self._step)
            self._step += 1
        self._mark, self._paused = time.monotonic(), None

    def epoch(self, metrics: Metrics | None = None, /, **more: SupportsFloat | None) -> None:
        """Reports the end of an epoch. Must be called after the evaluation. The time since the last step does not count as
        training.

        `accuracy=0.9` means `eval/accuracy`, and `train_loss=2.5` means `epoch/train_loss`. If `train_loss` is not given, it is
        the mean of the steps' losses.
        """
        self.start()
        seconds = sum(self._seconds[self._epoch_begin :])
        steps = len(self._seconds) - self._epoch_begin
        values: dict[str, SupportsFloat | None] = {}
        if steps > 0:
            values["epoch/seconds"] = seconds
            values["epoch/throughput"] = self._global_batch * steps / seconds if self._global_batch and seconds > 0 else None
        if self._losses:
            values["epoch/train_loss"] = statistics.fmean(self._losses)
        values.update(metrics or {})
        values.update({("epoch/" + key if key.startswith("train_") else "eval/" + key): value for key, value in more.items()})
        self._write("epoch", values, epoch=self._epoch)
        if values.get("epoch/train_loss") is not None:
            self._computed["run/train_loss"] = values["epoch/train_loss"]
        accuracy = values.get("eval/accuracy")
        if accuracy is not None:
            self._computed["run/accuracy"] = float(accuracy)
            target = self.spec.get("target_accuracy", 0)
            # The training time of earlier attempts is unknown.
            if target and float(accuracy) >= target and self._resumed_step == 0:
                self._computed.setdefault("run/time_to_accuracy_s", sum(self._seconds))
        self._epoch += 1
        self._epoch_begin = len(self._seconds)
        self._losses.clear()
        self._mark, self._paused = time.monotonic(), None

    def checkpoint(self, step: SupportsIndex) -> None:
        """Reports a complete checkpoint. `step` is the number of steps that it contains, counted from the first step of the run. Each
        rank must call `checkpoint` after the checkpoint is written. The call syncs the event file of the rank before it writes the
        event, because the next attempt does not report these steps again. The service uses the event of rank 0. The time since the
        last step, or since `pause`, does not count for the next step. Raises ValueError if `step` is negative.
        """
        count = _count("step", step)
        self.start()
        if self._file is not None:
            self._file.sync()
        self._write("checkpoint", step=count)
        self.resume()

    def pause(self) -> None:
        """Marks the start of work that is not training. Then `resume` excludes only the time since `pause` from the next step."""
        self._paused = time.monotonic()

    def resume(self) -> None:
        """Excludes the time since the last step, or since `pause`, from the next step. Call it after work that is not training,
        such as an evaluation within an epoch."""
        now = time.monotonic()
        self._mark = now if self._paused is None else self._mark + now - self._paused
        self._paused = None

    def result(self, metrics: Metrics | None = None, /, **more: SupportsFloat | None) -> None:
        """Sets results of the run: `accuracy=0.9` means `run/accuracy`. They replace results that are computed from steps and
        epochs."""
        self._result.update({**(metrics or {}), **{"run/" + key: value for key, value in more.items()}})

    def finish(self) -> None:
        """Reports the end of a successful run, with its results. The end of a `with` statement calls `finish`. Does nothing after
        the first call of `finish` or `error`."""
        if self._ended:
            return
        self.start()
        self._ended = True
        self._write("finish", {**self._computed, **self._measured(), **self._result}, parameter_hash=self.parameter_hash)
        self._close()

    def error(self, message: str, kind: str = "") -> None:
        """Reports that the run has failed. A `with` statement calls `error` for an exception. `kind` is `out_of_memory`, `data`,
        `communication`, `rendezvous`, `configuration` or empty. Does nothing after the first call of `finish` or `error`."""
        if self._ended:
            return
        self._ended = True
        # Names of files may have bytes that are not UTF-8. JSON parsers do not accept the surrogates that Python uses for them.
        text = message[:MESSAGE_LIMIT].encode("utf-8", "replace").decode()
        self._write("error", message=text, kind=kind)
        self._close()

    def _measured(self) -> dict[str, SupportsFloat | None]:
        measured = self._seconds[int(self.spec.get("warmup_steps", 0)) :]
        values: dict[str, SupportsFloat | None] = {
            "run/steps": self._step,
            "run/seconds": time.monotonic() - self._begin,
            "run/peak_memory_bytes": _peak_memory(),
        }
        if self._losses:  # losses of an epoch that has not ended
            values["run/train_loss"] = statistics.fmean(self._losses)
        if measured and sum(measured) > 0:
            median = statistics.median(measured)
            values["run/step_seconds"] = median
            if self._global_batch:
                values["run/throughput"] = self._global_batch / median if median > 0 else None
                values["run/throughput_mean"] = self._global_batch * len(measured) / sum(measured)
        return values

    def _write(self, event: str, metrics: Metrics | None = None, **fields: Any) -> None:
        if self._file is not None:
            self._file.add(event, fields, metrics)

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()


def describe(error: BaseException) -> tuple[str, str]:
    """Returns one line about an exception, and the kind of the error."""
    lines = str(error).strip().splitlines()
    text = type(error).__name__ + (": " + lines[0] if lines else "")
    memory = isinstance(error, MemoryError) or type(error).__name__ in ("OutOfMemoryError", "ResourceExhaustedError")
    if memory or "out of memory" in text.lower() or "can't allocate memory" in text:
        return text, "out_of_memory"
    return text, ""


class _EventFile:
    """Appends complete lines, many of them with one write. Raises OSError if the file cannot be written."""

    def __init__(self, path: str) -> None:
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
        except OSError as error:
            raise OSError(error.errno, f"cannot open the event file (SCALELAB_EVENTS): {error.strerror}", path) from error
        self._pending: list[str] = []
        self._written = time.monotonic()

    def add(self, event: str, fields: Mapping[str, Any], metrics: Metrics | None) -> None:
        """Adds an event. Steps are buffered until FLUSH_AFTER seconds after the last write; other events are written at once."""
        line = {"time": round(time.time(), 6), "event": event, **fields}
        if metrics is not None:
            line["metrics"] = {key: _number(value) for key, value in metrics.items() if value is not None}
        text = json.dumps(line, separators=(",", ":"))
        if len(text) > LINE_LIMIT:
            raise ValueError(f"an event has {len(text)} bytes, more than {LINE_LIMIT}: report fewer metrics at once")
        self._pending.append(text + "\n")
        if event != "step" or time.monotonic() - self._written >= FLUSH_AFTER:
            self._flush()

    def sync(self) -> None:
        """Writes the buffered steps and syncs the file, so that all events so far survive a power failure."""
        self._flush()
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a pipe or a terminal cannot be synced
                raise

    def close(self) -> None:
        self._flush()
        os.close(self._descriptor)

    def _flush(self) -> None:
        data = "".join(self._pending).encode()
        self._pending.clear()
        while data:
            data = data[os.write(self._descriptor, data) :]
        self._written = time.monotonic()


def _count(name: str, value: SupportsIndex) -> int:
    """Returns a number of steps or epochs. The service refuses numbers that are negative or not whole."""
    count = operator.index(value)
    if count < 0:
        raise ValueError(f"{name} is {count}; it must be at least 0")
    return count


def _number(value: SupportsFloat) -> float | str:
    number = float(value)
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _read_spec(path: str | None) -> dict[str, Any]:
    """Returns the parameters of the run. 64-bit integers are strings in the file and numbers in the result."""
    if not path:
        return {}
    with open(path, encoding="utf-8") as file:
        spec: dict[str, Any] = json.load(file)
    for key in _WHOLE_64:
        if key in spec:
            spec[key] = int(spec[key])
    return spec


def _framework() -> tuple[str, str]:
    for name in _FRAMEWORKS:
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            return name, str(version)
    return "python", platform.python_version()


def _peak_memory() -> float:
    """Returns the largest resident set of this process in bytes."""
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii", errors="replace") as file:
        return _peak_of(file)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def _peak_of(lines: Iterable[str]) -> float:
    for line in lines:
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024.0
    raise OSError("the status of the process has no line VmHWM")
