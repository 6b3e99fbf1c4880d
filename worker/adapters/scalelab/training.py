"""The training loop of all adapters: one rank of one run, with the events and metrics of worker/trainer/loop/train_loop.cc.

An adapter is a subclass of Engine and a call `training.run(ItsEngine)`. `train` is the loop.
"""
import collections
import contextlib
import ctypes
import dataclasses
import hashlib
import os
import signal
import sys
import time
import traceback

import numpy as np

from . import choices, recipe
from .deadline import Deadline
from .errors import RunError, describe
from .events import Events
from .meter import RunMeter, peak_resident_bytes, straggler_skew
from .spec import PARAMETERS

# Additional seconds for the first step, in which frameworks compile.
_FIRST_STEP = 300
# Maximum number of steps with pending results, for engines that return results later to avoid waiting for a device in each step.
_AHEAD = 16


@dataclasses.dataclass
class StepResult:
    """The result of a step on this rank's batch (on the whole batch if one process drives all replicas).

    `loss` is the mean loss, `correct` the number of correct answers. `times` maps metric names to seconds and has only the times that
    the framework exposes: "step/forward_s", "step/backward_s" (without waiting for communication), "step/comm_exposed_s",
    "step/optimizer_s", and "step/total_s" if it was measured on the device. `metrics` has further metrics, such as "comm/bytes".
    """

    loss: float
    correct: float
    times: dict = dataclasses.field(default_factory=dict)
    metrics: dict = dataclasses.field(default_factory=dict)


class Engine:
    """The framework's part of a rank. Unless documented otherwise, all ranks call the methods in the same order.

    Every method may raise an exception, which ends the rank with an `error` event; RunError if the cause is known.
    """

    name = ""  # as in RunSpec.engine
    framework = ""  # in the start event: "pytorch"
    one_process = False  # one process drives all replicas: it gets whole batches, and `ranks` is the number of replicas
    layout = "NCHW"  # of the images for step and evaluate, or "NHWC"; __init__ may set it

    @staticmethod
    def version():
        """Returns the framework's version for the start event: "torch 1.13.1"."""
        raise NotImplementedError

    def __init__(self, spec, data, rank, ranks, parameters):
        """Connects to the other ranks and builds the model with `parameters` (native name -> numpy array, PyTorch's layout).

        Uses at most spec.cpus_per_rank threads. Waits for other ranks for at most spec.comm_timeout_s; the training loop enforces this
        timeout for all other methods."""
        raise NotImplementedError

    def step(self, images, labels, rate):
        """Runs one step of SGD on float32 images and int64 labels: v = m * v + g + wd * p; p -= rate * v, where g is the gradient of the
        mean cross entropy, averaged over ranks. Returns a StepResult, or a function without arguments that waits for it. The
        function is called some steps later; without "step/total_s" in its result, a step lasts from the end of the step before it to its
        own end."""
        raise NotImplementedError

    def prepare(self, images, labels):
        """Returns what `step` gets for this batch. A thread that loads data calls it ahead of the step, in the order of the steps."""
        return images, labels

    def device_model(self):
        """Returns the model of the device that this rank computes on, for the start event."""
        return cpu_model()

    def begin_evaluation(self):
        """Copies rank 0's running statistics to all ranks, if ranks have different ones."""

    def evaluate(self, images, labels):
        """Returns (sum of losses, correct answers) of images in evaluation mode. Ranks may make different numbers of calls."""
        raise NotImplementedError

    def sum_over_ranks(self, numbers):
        """Returns the element-wise sum of a list of floats over ranks, in double precision if the framework supports it."""
        raise NotImplementedError

    def barrier(self):
        self.sum_over_ranks([0.0])

    def parameters(self):
        """Returns native name -> numpy array in PyTorch's layout, buffers included. Only the buffers may differ between ranks."""
        raise NotImplementedError

    def run_metrics(self):
        """Returns further metrics of the `finish` event, such as "run/device_memory_bytes". Not collective."""
        return {}

    def close(self):
        """Disconnects from the other ranks, after the `finish` event."""


def check(spec, engine_class):
    if spec.engine and spec.engine != engine_class.name:
        raise RunError(f'this adapter is engine "{engine_class.name}", not "{spec.engine}"', "configuration")
    for parameter in PARAMETERS:
        name, value = parameter["name"], getattr(spec, parameter["name"])
        native_only = parameter["native_only"] and engine_class.name not in parameter["engines"]
        if (native_only or name == "batch_norm") and value != parameter["default"]:
            raise RunError(
                f'engine {engine_class.name} does not have {name} "{value}": remove it, or use {_engine_with(parameter)}',
                "configuration",
            )


def _engine_with(parameter):
    native = any(name.startswith("native/") for name in parameter["engines"]) or not parameter["engines"]
    return "a native engine" if native else parameter["engines"][0]


def cpu_model():
    """Returns the model of this node's CPUs, or their architecture if /proc does not have it, as the native trainer does."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() == "model name" and value.strip():
                    return value.strip()
    except OSError:
        pass
    return os.uname().machine


def parameter_hash(parameters):
    """Returns 16 hexadecimal digits of SHA-256 over the parameters (not the buffers) in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(parameters):
        if not recipe.is_buffer(name):
            digest.update(np.ascontiguousarray(parameters[name]).tobytes())
    return digest.hexdigest()[:16]


class _EpochLog:
    """Writes the events of an epoch's steps when their results are available."""

    def __init__(self, events, meter, rank):
        self._events, self._meter, self._rank = events, meter, rank
        self._waiting = collections.deque()
        self._ended = time.perf_counter()  # when the last step with a later result ended
        self.loss = self.correct = self.samples = self.seconds = 0.0

    def add(self, place, result, total, data_seconds, rate, samples):
        self._waiting.append((place, result, total, data_seconds, rate, samples))
        while self._waiting and (len(self._waiting) > _AHEAD or not callable(self._waiting[0][1])):
            self._report(*self._waiting.popleft())

    def end(self):
        while self._waiting:
            self._report(*self._waiting.popleft())

    def _report(self, place, result, total, data_seconds, rate, samples):
        if callable(result):
            result = result()
            before, self._ended = self._ended, time.perf_counter()
            total = self._ended - before
        times = {"step/total_s": total, "step/data_s": data_seconds, **result.times}
        self.loss += result.loss * samples
        self.correct += result.correct
        self.samples += samples
        self.seconds += times["step/total_s"]
        self._meter.add(times["step/total_s"], times)
        metrics = {**times, **result.metrics, "train/loss": result.loss}
        if self._rank == 0:
            metrics["train/learning_rate"] = rate
        self._events.step(*place, metrics)


class _Waits:
    """Calls the collective methods of an engine with the timeout comm_timeout_s."""

    def __init__(self, engine, seconds):
        self._engine, self._deadline, self._stepped = engine, Deadline(seconds), False

    def step(self, images, labels, rate):
        with self._deadline("a step", 0 if self._stepped else _FIRST_STEP):
            result = self._engine.step(images, labels, rate)
        self._stepped = True
        return result

    def end(self, log):
        with self._deadline("the last steps of an epoch"):
            log.end()

    def begin_evaluation(self):
        with self._deadline("sharing the running statistics"):
            self._engine.begin_evaluation()

    def sum(self, numbers):
        with self._deadline("a sum over all ranks"):
            return self._engine.sum_over_ranks(numbers)

    def barrier(self):
        with self._deadline("waiting for all ranks", _FIRST_STEP):
            self._engine.barrier()

    def parameters(self):
        with self._deadline("collecting the parameters"):
            return self._engine.parameters()

    def close(self):
        self._deadline.finished = True
        with self._deadline("leaving the other ranks"):
            self._engine.close()


def _evaluate(engine, waits, data, rank, ranks):
    """Evaluates every image of the test set once, distributed over all ranks, and returns the metrics."""
    begin = time.perf_counter()
    waits.begin_evaluation()
    images = len(data.test_labels)
    first, end = images * rank // ranks, images * (rank + 1) // ranks
    batch = max(1, min(250, (1 << 20) // (data.side * data.side)))
    loss = correct = 0.0
    for at in range(first, end, batch):
        part = slice(at, min(end, at + batch))
        more = engine.evaluate(data.test_batch(part, engine.layout), data.test_labels[part])
        loss, correct = loss + more[0], correct + more[1]
    loss, correct, samples = waits.sum([loss, correct, float(end - first)])
    return {
        "eval/loss": loss / samples,
        "eval/accuracy": correct / samples,
        "eval/samples": samples,
        "eval/seconds": time.perf_counter() - begin,
    }


def train(engine_class, spec, rank, ranks, events):
    """Runs the training, from loading the data to the `finish` event. Returns a function that closes the engine."""
    check(spec, engine_class)
    # If one process drives all replicas, it gets whole batches.
    part, parts = (0, 1) if engine_class.one_process else (rank, ranks)
    data = recipe.load_data(spec)
    # What needs no other rank is checked before the engine waits for the others.
    recipe.check_size(spec, data)
    if not choices.needs_gpu(spec):
        choices.check_precision(spec, gpu=False)
    engine = engine_class(spec, data, rank, ranks, recipe.initial_parameters(spec))
    batches = recipe.Batches(spec, data, part, parts, engine.layout, engine.prepare)
    meter = RunMeter(spec.warmup_steps, spec.global_batch)
    cores = spec.cpus_per_rank * (ranks if engine_class.one_process else 1)
    evaluation, train_loss, time_to_accuracy, samples_to_accuracy = {}, None, None, None
    training_seconds = cpu_seconds = run_seconds = trained = 0.0

    waits = _Waits(engine, spec.comm_timeout_s)
    waits.barrier()  # the time that other ranks need to load is not part of the first step
    events.start(engine_class.framework, engine_class.version(), ranks, rank, batches.total_steps, engine.device_model())
    begin = time.perf_counter()
    step = epoch = 0
    while step < batches.total_steps:
        epoch_end = min(batches.total_steps, (epoch + 1) * batches.steps_per_epoch)
        cpu_before = time.process_time()
        log = _EpochLog(events, meter, rank)
        last = time.perf_counter()  # excludes the time of the evaluation
        while step < epoch_end:
            rate = recipe.learning_rate(spec, step, batches.steps_per_epoch)
            images, labels = next(batches)
            loaded = time.perf_counter()
            result = waits.step(images, labels, rate)
            now = time.perf_counter()
            log.add((epoch, step), result, now - last, loaded - last, rate, len(labels))
            last, step = now, step + 1
        waits.end(log)
        run_seconds = time.perf_counter() - begin
        cpu_seconds += time.process_time() - cpu_before
        training_seconds += log.seconds

        loss, correct, samples = waits.sum([log.loss, log.correct, log.samples])
        train_loss = loss / samples
        trained += samples
        metrics = {
            "epoch/seconds": log.seconds,
            "epoch/throughput": samples / log.seconds,
            "epoch/train_loss": train_loss,
            "epoch/train_accuracy": correct / samples,
        }
        if spec.evaluate:
            evaluation = _evaluate(engine, waits, data, part, parts)
            metrics.update(evaluation)
            reached = 0 < spec.target_accuracy <= evaluation["eval/accuracy"]
            if reached and time_to_accuracy is None:
                time_to_accuracy, samples_to_accuracy = training_seconds, trained
        events.epoch(epoch, metrics)
        epoch += 1

    compute = meter.mean_compute()
    skew = None
    if compute is not None:
        skew = straggler_skew(waits.sum([compute if r == part else 0.0 for r in range(parts)]))
    parameters = waits.parameters()
    if spec.save_parameters and rank == 0:
        path = os.path.join(os.environ.get("SCALELAB_ATTEMPT_DIR", "."), "parameters.safetensors")
        recipe.write_safetensors(path, parameters)
    if not meter.metrics(1) and rank == 0:
        print(
            f"nothing was measured: the run has {meter.steps} steps and warmup_steps is {spec.warmup_steps}", file=sys.stderr
        )
    events.finish(
        {
            **meter.metrics(batches.sampler.samples_per_epoch),
            "run/peak_memory_bytes": peak_resident_bytes(),
            "run/cpu_utilisation": cpu_seconds / (training_seconds * cores),
            "run/accuracy": evaluation.get("eval/accuracy"),
            "run/train_loss": train_loss,
            "run/time_to_accuracy_s": time_to_accuracy,
            "run/samples_to_accuracy": samples_to_accuracy,
            "run/straggler_skew": skew,
            "run/steps": meter.steps,
            "run/seconds": run_seconds,
            **engine.run_metrics(),
        },
        parameter_hash(parameters),
    )
    return waits.close


def _number(names, otherwise):
    """Returns the first of these environment variables that is set, as a number of at least 0."""
    for name in names:
        text = os.environ.get(name, "")
        if text:
            if not text.isdecimal():
                raise RunError(f'environment variable {name} must be a number of at least 0, it is "{text}"', "configuration")
            return int(text)
    return otherwise


def _event_files(path, replicas):
    """Returns the event files of all replicas; `path` is that of replica 0."""
    if replicas == 1:
        return [path]
    if "events-0" not in os.path.basename(path):
        raise RunError(f'SCALELAB_EVENTS must name "events-0.jsonl" for {replicas} replicas, not "{path}"', "configuration")
    directory, name = os.path.split(path)
    return [os.path.join(directory, name.replace("events-0", f"events-{i}", 1)) for i in range(replicas)]


@contextlib.contextmanager
def importing(engine, environment):
    """A context for an adapter's imports of its framework: an exception ends the process with an `error` event."""
    try:
        yield
    except Exception as e:  # pylint: disable=broad-except
        why = (str(e).strip().splitlines() or [type(e).__name__])[0]
        error = RunError(
            f"cannot import what it needs: {why}; deploy/frameworks {environment} makes an environment that has it",
            "configuration",
        )
        error.__cause__ = e
        _fail(engine, error, Events(os.environ.get("SCALELAB_EVENTS", "")))
        os._exit(1)


def _fail(name, error, events):
    """Reports an error: the traceback on standard error, one line in the event file."""
    traceback.print_exception(type(error), error, error.__traceback__)
    message, kind = describe(error)
    print(f"{name}: {message}", file=sys.stderr, flush=True)
    if events is not None:
        try:
            events.error(message, kind)
        except OSError:
            pass  # the event file cannot be written; standard error has the message


def run(engine_class):
    """The main program of an adapter. Does not return.

    Exits with os._exit, because frameworks wait for their threads and for ranks that are gone when Python shuts down."""
    if "OMPI_COMM_WORLD_RANK" in os.environ or "PMIX_RANK" in os.environ:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: the kernel kills this rank when its launcher ends
    events, status = None, 1
    try:
        rank = _number(("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK"), 0)
        ranks = _number(("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"), 1)
        replicas = _number(("SCALELAB_REPLICAS",), ranks) if engine_class.one_process else 1
        events = Events(_event_files(os.environ.get("SCALELAB_EVENTS", ""), replicas))
        spec = recipe.Spec.read(os.environ.get("SCALELAB_SPEC", ""))
        close = train(engine_class, spec, rank, replicas if engine_class.one_process else ranks, events)
        status = 0
        close()
    except BaseException as e:  # pylint: disable=broad-except
        _fail(engine_class.name, e, events if status == 1 else None)  # no event may follow `finish`
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
