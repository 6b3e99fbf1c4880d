"""The interface of engines, and the main program of adapters. An adapter defines a subclass of Engine and calls `training.run`
with it."""
import contextlib
import ctypes
import dataclasses
import faulthandler
import os
import signal
import sys
import traceback

from . import recipe, train_loop
from .errors import RunError, describe
from .events import Events
from .spec import ENGINES, PARAMETERS


@dataclasses.dataclass
class StepResult:
    """The result of a step on this rank's batch, or on the whole batch if one process drives all replicas.

    `loss` is the mean loss, and `correct` is the number of correct predictions. `times` maps metric names to seconds, and
    contains only the times that the framework exposes: "step/forward_s", "step/backward_s" (without waiting for communication),
    "step/comm_exposed_s", "step/optimizer_s", and "step/total_s" if it was measured on the device. `metrics` has further metrics,
    such as "comm/bytes".
    """

    loss: float
    correct: float
    times: dict = dataclasses.field(default_factory=dict)
    metrics: dict = dataclasses.field(default_factory=dict)


class Engine:
    """The framework's part of a rank. Unless documented otherwise, all ranks call the methods in the same order.

    Every method may raise an exception, which ends the rank with an `error` event. A method should raise RunError if it knows the
    cause.
    """

    name = ""  # as in RunSpec.engine
    framework = ""  # in the start event: "pytorch"
    one_process = False  # whether one process drives all replicas. It gets whole batches, and `ranks` is the number of replicas
    layout = "NCHW"  # layout of the images for step and evaluate: "NCHW" or "NHWC"; __init__ may set it
    takes_bytes = False  # whether step and evaluate get an image_server.ByteBatch instead of images; __init__ may set it

    @staticmethod
    def version():
        """Returns the framework's version for the start event, such as "torch 1.13.1"."""
        raise NotImplementedError

    def __init__(self, spec, data, rank, ranks, parameters):
        """Connects to the other ranks and builds the model with `parameters` (numpy arrays in PyTorch's layout, by native name).

        Uses at most spec.cpus_per_rank threads. Waits for other ranks for at most spec.comm_timeout_s. For all other methods, the
        training loop enforces this timeout."""
        raise NotImplementedError

    def step(self, images, labels, rate):
        """Runs one step of SGD on float32 images and int64 labels: v = m * v + g + wd * p; p -= rate * v, where g is the gradient
        of the mean cross entropy, averaged over ranks. Returns a StepResult, or a function without arguments that waits for the
        StepResult. The training loop calls this function some steps later. If the result has no "step/total_s", the duration of
        the step is the time from the end of the previous step to its own end."""
        raise NotImplementedError

    @property
    def batch_layout(self):
        """The layout in which the engine requests batches from the data set."""
        return "BYTES" if self.takes_bytes else self.layout

    def prepare(self, images, labels):
        """Returns the arguments of `step` for this batch. A thread that loads data calls `prepare` before the step, in the order
        of the steps."""
        return images, labels

    def data_part(self, rank, ranks):
        """Returns (part, parts): the part of each batch that this rank trains on. Ranks with the same part train on the same samples."""
        return (0, 1) if self.one_process else (rank, ranks)

    def device_model(self):
        """Returns the model of the device that this rank computes on, for the start event."""
        return cpu_model()

    def begin_evaluation(self):
        """Copies rank 0's running statistics to all ranks, if ranks have different statistics."""

    def evaluate(self, images, labels):
        """Returns (sum of losses, number of correct predictions) of images in evaluation mode. Ranks may make different numbers
        of calls."""
        raise NotImplementedError

    def sum_over_ranks(self, numbers):
        """Returns the element-wise sum of a list of floats over ranks, in double precision if the framework supports it."""
        raise NotImplementedError

    def barrier(self):
        self.sum_over_ranks([0.0])

    def parameters(self):
        """Returns the parameters and buffers as numpy arrays in PyTorch's layout, by native name. Only buffers may differ between
        ranks."""
        raise NotImplementedError

    def save(self, directory):
        """Writes this rank's part of the state that training needs to continue to files in `directory`, with durable.replace.
        Returns the names of the files: rank-R.* for rank R, and on rank 0 also shared.*, which all ranks read. Not collective.
        Needed only for engines that have checkpoints in the catalogue."""
        raise NotImplementedError

    def load(self, directory):
        """Loads the state that the same number of ranks have saved. Called before the first step. Training then computes the same
        bits as without the interruption, if the framework is deterministic."""
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
    native = any(ENGINES[name]["program"] == "trainer" for name in parameter["engines"]) or not parameter["engines"]
    return "a native engine" if native else parameter["engines"][0]


def cpu_model():
    """Returns the model of this node's CPUs, like the native trainer. Returns the architecture if /proc does not contain the
    model."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() == "model name" and value.strip():
                    return value.strip()
    except OSError:
        pass
    return os.uname().machine


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
    """Returns the event files of all replicas. `path` is the event file of replica 0."""
    if replicas == 1:
        return [path]
    if "events-0" not in os.path.basename(path):
        raise RunError(f'SCALELAB_EVENTS must name "events-0.jsonl" for {replicas} replicas, not "{path}"', "configuration")
    directory, name = os.path.split(path)
    return [os.path.join(directory, name.replace("events-0", f"events-{i}", 1)) for i in range(replicas)]


@contextlib.contextmanager
def importing(engine):
    """Returns a context for an adapter's imports of its framework. An exception ends the process with an `error` event, which names
    the environment of the engine."""
    try:
        yield
    except Exception as e:  # pylint: disable=broad-except
        why = (str(e).strip().splitlines() or [type(e).__name__])[0]
        environment = ENGINES[engine]["environment"]
        error = RunError(
            f"cannot import what it needs: {why}; deploy/frameworks {environment} makes an environment that has it",
            "configuration",
        )
        error.__cause__ = e
        _fail(engine, error, Events(os.environ.get("SCALELAB_EVENTS", "")))
        os._exit(1)


def _fail(name, error, events):
    """Reports an error: writes the traceback to standard error, and one line to the event file."""
    message, kind = describe(error)
    with contextlib.suppress(OSError):  # standard error may be a file on a full disk
        traceback.print_exception(type(error), error, error.__traceback__)
        print(f"{name}: {message}", file=sys.stderr, flush=True)
    if events is not None:
        try:
            events.error(message, kind)
        except OSError:
            pass  # the event file cannot be written; standard error has the message


def run(engine_class):
    """Runs the main program of an adapter. Does not return.

    Exits with os._exit, because frameworks wait for their threads and for ranks that have ended when Python shuts down."""
    if "OMPI_COMM_WORLD_RANK" in os.environ or "PMIX_RANK" in os.environ:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: the kernel kills this rank when its launcher ends
    faulthandler.enable()  # a crash in a framework's C++ code prints what Python was calling
    events, status = None, 1
    try:
        rank = _number(("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK"), 0)
        ranks = _number(("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"), 1)
        replicas = _number(("SCALELAB_REPLICAS",), ranks) if engine_class.one_process else 1
        events = Events(_event_files(os.environ.get("SCALELAB_EVENTS", ""), replicas))
        spec = recipe.Spec.read(os.environ.get("SCALELAB_SPEC", ""))
        check(spec, engine_class)
        close = train_loop.train(engine_class, spec, rank, replicas if engine_class.one_process else ranks, events)
        status = 0
        close()
    except BaseException as e:  # pylint: disable=broad-except
        _fail(engine_class.name, e, events if status == 1 else None)  # no event may follow `finish`
        status = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(status)
