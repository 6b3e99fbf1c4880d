"""Starts runs of two ranks as the worker does: the native trainer, and the adapters in the environments of deploy/frameworks."""
import dataclasses
import fcntl
import hashlib
import json
import os
import pickle
import select
import signal
import subprocess
import sys
import tempfile
import types
import unittest

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
ADAPTERS = os.path.join(SOURCE, "worker", "adapters")
sys.path.insert(0, ADAPTERS)
from scalelab import recipe  # noqa: E402

FOLDER = os.path.dirname(os.path.abspath(__file__))
SKIPPED = 77  # exit status that ctest treats as skipped

# Engines whose ranks are forked from a process that has imported the framework, with the modules that it imports in addition to
# the adapter, and the variables that the framework reads during the import. The other engines start threads during the import, or
# need different variables for each process.
IMPORTS = {
    "horovod/pytorch": ([], {}),
    "horovod/tensorflow": (["tensorflow", "horovod.tensorflow"], {}),
    "keras/jax": (["jax", "keras"], {"KERAS_BACKEND": "jax"}),
    "keras/pytorch": (["keras"], {"KERAS_BACKEND": "torch", "KERAS_TORCH_DEVICE": "cpu"}),
    "keras/tensorflow": (["tensorflow", "keras"], {"KERAS_BACKEND": "tensorflow"}),
    "tensorflow/mirrored": (["tensorflow"], {}),
    "tensorflow/multiworker-mirrored": (["tensorflow"], {}),
    **{f"pytorch/{name}": ([], {}) for name in ("ddp", "dp", "fsdp", "local-sgd", "pipeline", "powersgd", "zero1")},
}


# The engine under test, in tests that are run for each engine (engine_test.py).
ENGINE = sys.argv[1] if len(sys.argv) > 1 else "pytorch/ddp"

with open(os.path.join(ADAPTERS, "scalelab", "run_parameters.json"), encoding="utf-8") as _file:
    # The rows of catalog/engines.cc for engines with an adapter, by the engine's name.
    ENGINES = {row["name"]: types.SimpleNamespace(**row) for row in json.load(_file)["engines"] if row["program"] == "adapter"}


@dataclasses.dataclass
class Result:
    statuses: list  # exit statuses of the processes; a negative one is a signal
    events: list  # the events of each rank
    errors: str  # standard error of all ranks
    parameters: dict  # parameters that rank 0 saved, or empty

    @property
    def status(self):
        """Returns 0 if all processes have exited with status 0."""
        return max(map(abs, self.statuses))

    def of(self, rank, event):
        return [e for e in self.events[rank] if e["event"] == event]

    def losses(self, rank):
        return [e["metrics"]["train/loss"] for e in self.of(rank, "step")]


def trainer():
    path = os.environ.get("SCALELAB_TRAINER", os.path.join(SOURCE, "build", "dev", "bin", "scalelab-trainer"))
    if not os.access(path, os.X_OK):
        skip(f"{path} is not there: build scalelab-trainer, or name another in SCALELAB_TRAINER")
    return path


def python_of(engine):
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    root = os.environ.get("SCALELAB_FRAMEWORKS") or os.path.join(data, "scalelab", "frameworks")
    environment = os.path.join(root, ENGINES[engine].environment)
    if not os.path.exists(os.path.join(environment, "ready")):
        skip(f"{environment} is not there: deploy/frameworks {ENGINES[engine].environment} makes it")
    return os.path.join(environment, "bin", "python")


def gpus_here():
    return os.path.exists("/proc/driver/nvidia/gpus")


def skip(why):
    raise unittest.SkipTest(why)


class _Counted(unittest.TextTestResult):
    """Counts the tests that have passed."""

    passed = 0

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed += 1

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        self.passed += err is None


def main(*modules):
    """Runs the tests of modules, and exits. If all are skipped, the exit status is SKIPPED."""
    suite = unittest.defaultTestLoader.loadTestsFromNames(modules)
    result = unittest.TextTestRunner(verbosity=2, resultclass=_Counted).run(suite)
    for _, why in result.skipped:
        print("SKIPPED:", why)
    sys.exit(1 if not result.wasSuccessful() else 0 if result.passed else SKIPPED)


def fields(engine, ranks, spec):
    """Returns the specification of a short run, with the fields in `spec`."""
    return {
        "engine": engine,
        "model": "resnet8",
        "dataset": "cifar10",
        "data_dir": os.path.join(SOURCE, "deploy", "data"),
        "ranks": ranks,
        "global_batch": 64,
        "max_steps": "10",
        "warmup_steps": 2,
        "learning_rate": 0.001,  # larger rates amplify rounding errors
        "seed": "3",
        "cpus_per_rank": 1,
        "save_parameters": True,
        "comm_timeout_s": 120,
        **spec,
    }


def native(spec, ranks=2, engine="native/ddp"):
    """Returns the result of a native engine. The first test that needs the result computes it, and other tests of the same call
    of ctest read it."""
    directory = os.environ.get("SCALELAB_NATIVE_RESULTS")
    if not directory:
        return run(engine, spec, ranks)
    os.makedirs(directory, exist_ok=True)
    key = json.dumps([ranks, fields(engine, ranks, spec)], sort_keys=True)
    path = os.path.join(directory, hashlib.sha256(key.encode()).hexdigest())
    with open(path + ".lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(path):
            result = run(engine, spec, ranks)
            if result.status != 0:
                return result
            with open(path + ".new", "wb") as file:
                pickle.dump(result, file)
            os.replace(path + ".new", path)
        with open(path, "rb") as file:
            return pickle.load(file)


class Importer:
    """A process that has imported an adapter (imported.py)."""

    _all = {}  # by Python and adapter

    @classmethod
    def of(cls, engine):
        key = python_of(engine), ENGINES[engine].script
        if key not in cls._all:
            cls._all[key] = cls(engine, *key)
        return cls._all[key]

    def __init__(self, engine, python, script):
        modules, variables = IMPORTS.get(engine, ([], {}))
        self._directory = tempfile.TemporaryDirectory(prefix="scalelab-imported-")
        self.socket = os.path.join(self._directory.name, "socket")
        self._process = subprocess.Popen(
            [python, os.path.join(FOLDER, "imported.py"), self.socket, os.path.join(ADAPTERS, script), *modules],
            env={**os.environ, "OMP_NUM_THREADS": "1", **variables}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def start(self, environment, output, wrapper):
        return Rank(self, self.ask({"start": {"environment": environment, "output": output, "wrapper": wrapper}}))

    def listening(self):
        """Returns the path of the socket for forked_rank.py."""
        self.ask({"wait": None})
        return self.socket

    def ask(self, request):
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise AssertionError(f"{self._process.args} has ended; standard error has the reason")
        return int(answer)


class Rank:
    """A forked rank, with the methods of subprocess.Popen that tests need."""

    def __init__(self, importer, pid):
        self._importer, self.pid, self.returncode = importer, pid, None
        self._ended = os.pidfd_open(pid)

    def poll(self):
        return self._wait(0)

    def wait(self, timeout=None):
        if self._wait(timeout) is None:
            raise subprocess.TimeoutExpired(f"rank {self.pid}", timeout)
        return self.returncode

    def kill(self):
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)

    def _wait(self, timeout):
        if self.returncode is None and select.select([self._ended], [], [], timeout)[0]:
            self.returncode = self._importer.ask({"wait": self.pid})
            os.close(self._ended)
        return self.returncode


def alone(engine, spec):
    """Runs only rank 0 of two ranks. It must fail before the ranks connect. Returns its events."""
    with tempfile.TemporaryDirectory(prefix="scalelab-frameworks-") as directory:
        environment, output = _environment(directory, 2, fields(engine, 2, spec)), os.path.join(directory, "errors")
        with open(output, "w", encoding="utf-8"):
            pass
        rank = Importer.of(engine).start({**environment, **_variables(directory, 0, 2, ENGINES[engine].one_process)}, output, None)
        try:
            rank.wait(300)
        finally:
            rank.kill()
        return events_of(os.path.join(directory, "events-0.jsonl"))


def run(engine, spec, ranks=2, timeout=300, meddle=None, wrapper=None, variables=None, fork=True):
    """Runs one attempt of `engine`. `spec` has fields in addition to those that make the run short.

    meddle(directory, processes): a function that is called when all processes have started.
    wrapper: a module in this folder that changes the adapter.
    variables: variables to add to the environment.
    fork: whether an MPI launcher may start ranks that are forked from a process that has imported the framework."""
    whole = fields(engine, ranks, spec)
    with tempfile.TemporaryDirectory(prefix="scalelab-frameworks-") as directory:
        environment = {**_environment(directory, ranks, whole), **(variables or {})}
        output = os.path.join(directory, "errors")
        running = []
        try:
            with open(output, "w", encoding="utf-8") as errors:
                for process in _start(engine, whole, directory, environment, errors, wrapper, fork):
                    running.append(process)
            if meddle is not None:
                meddle(directory, running)
            statuses = [process.wait(timeout) for process in running]
        finally:
            for process in running:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        events = [events_of(os.path.join(directory, f"events-{rank}.jsonl")) for rank in range(ranks)]
        saved = os.path.join(directory, "parameters.safetensors")
        parameters = recipe.read_safetensors(saved) if os.path.exists(saved) else {}
        with open(output, encoding="utf-8", errors="replace") as errors:
            return Result(statuses, events, errors.read(), parameters)


def _environment(directory, ranks, whole):
    """Writes the specification, and returns the environment variables of all ranks."""
    spec = os.path.join(directory, "spec.json")
    with open(spec, "w", encoding="utf-8") as file:
        json.dump(whole, file)
    return {
        **os.environ,
        "SCALELAB_TRAINER": trainer(),
        "SCALELAB_SPEC": spec,
        "SCALELAB_ATTEMPT_DIR": directory,
        "WORLD_SIZE": str(ranks),
        "OMP_NUM_THREADS": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",  # other tests run on the same cores
    }


def _variables(directory, rank, ranks, one_process):
    own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "SCALELAB_EVENTS": f"{directory}/events-{rank}.jsonl"}
    return {**own, "SCALELAB_REPLICAS": str(ranks)} if one_process else own


def _start(engine, whole, directory, environment, errors, wrapper, fork):
    """Starts the processes of an attempt, one after another."""
    ranks = whole["ranks"]
    if engine.startswith("native/"):
        argv, mpi, one_process = [trainer()], whole.get("backend", "mpi") == "mpi" and ranks > 1, False
        environment.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")  # as the worker does
    else:
        what = ENGINES[engine]
        argv, mpi, one_process = [python_of(engine), os.path.join(ADAPTERS, what.script)], what.mpi, what.one_process
        if wrapper:
            argv.insert(1, os.path.join(FOLDER, wrapper + ".py"))
        if mpi and fork and engine in IMPORTS:
            imported = Importer.of(engine).listening()
            argv = ["/usr/bin/python3", "-S", os.path.join(FOLDER, "forked_rank.py"), imported, errors.name]
            argv += [wrapper] if wrapper else []
    if mpi:
        rank = "RANK=$OMPI_COMM_WORLD_RANK LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK"
        script = f'{rank} SCALELAB_EVENTS={directory}/events-$OMPI_COMM_WORLD_RANK.jsonl exec "$@"'
        launcher = ["mpirun", "--oversubscribe", "--bind-to", "none", "--mca", "plm", "isolated"]
        launcher += ["--allow-run-as-root"] if os.geteuid() == 0 else []
        command = [*launcher, "-np", str(ranks), "sh", "-c", script, "sh", *argv]
        yield subprocess.Popen(command, env=environment, stdout=errors, stderr=errors, start_new_session=True)
        return
    for rank in range(1 if one_process else ranks):
        variables = {**environment, **_variables(directory, rank, ranks, one_process)}
        if engine in IMPORTS:
            yield Importer.of(engine).start(variables, errors.name, wrapper)
        else:
            yield subprocess.Popen(argv, env=variables, stdout=errors, stderr=errors, start_new_session=True)


def events_of(path):
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]
