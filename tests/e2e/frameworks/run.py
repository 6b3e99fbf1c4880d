"""Starts runs of two ranks as the worker does: the native trainer, and the adapters in the environments of deploy/frameworks."""
import dataclasses
import fcntl
import hashlib
import json
import os
import pickle
import subprocess
import sys
import tempfile
import types

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
ADAPTERS = os.path.join(SOURCE, "worker", "adapters")
sys.path.insert(0, ADAPTERS)
from scalelab import recipe  # noqa: E402

SKIPPED = 77  # exit status that ctest treats as skipped


with open(os.path.join(ADAPTERS, "scalelab", "run_parameters.json"), encoding="utf-8") as _file:
    # The rows of catalog/engines.cc whose engine has an adapter, by the engine's name.
    ENGINES = {row["name"]: types.SimpleNamespace(**row) for row in json.load(_file)["engines"] if row["program"] == "adapter"}


@dataclasses.dataclass
class Result:
    status: int  # 0 if all ranks exit with 0
    events: list  # of each rank
    errors: str  # standard error of all ranks
    parameters: dict  # parameters that rank 0 saved, or empty

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
    print("SKIPPED:", why)
    sys.exit(SKIPPED)


def _fields(engine, ranks, spec):
    return {
        "engine": engine,
        "model": "resnet20",
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


def mistakes(engine, specs):
    """Runs rank 0 of two with each of `specs`, which must fail before the ranks join. Returns the events of each run."""
    python, script = python_of(engine), os.path.join(ADAPTERS, ENGINES[engine].script)
    wrapper = os.path.join(os.path.dirname(os.path.abspath(__file__)), "mistakes.py")
    with tempfile.TemporaryDirectory(prefix="scalelab-frameworks-") as top:
        directories = [os.path.join(top, str(i)) for i in range(len(specs))]
        for directory, spec in zip(directories, specs):
            os.mkdir(directory)
            with open(os.path.join(directory, "spec.json"), "w", encoding="utf-8") as file:
                json.dump(_fields(engine, 2, spec), file)
        ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1", "SCALELAB_TRAINER": trainer()}
        if ENGINES[engine].one_process:
            ranks["SCALELAB_REPLICAS"] = "2"
        subprocess.run([python, wrapper, script, *directories], env={**os.environ, **ranks}, timeout=300, check=True)
        return [_events(os.path.join(directory, "events-0.jsonl")) for directory in directories]


def native(spec, ranks=2):
    """Returns the result of native/ddp. The first test that needs it computes it, and the others of this run of ctest read it."""
    directory = os.environ.get("SCALELAB_NATIVE_RESULTS")
    if not directory:
        return run("native/ddp", spec, ranks)
    os.makedirs(directory, exist_ok=True)
    fields = json.dumps([ranks, _fields("native/ddp", ranks, spec)], sort_keys=True)
    path = os.path.join(directory, hashlib.sha256(fields.encode()).hexdigest())
    with open(path + ".lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(path):
            result = run("native/ddp", spec, ranks)
            if result.status != 0:
                return result
            with open(path + ".new", "wb") as file:
                pickle.dump(result, file)
            os.replace(path + ".new", path)
        with open(path, "rb") as file:
            return pickle.load(file)


def run(engine, spec, ranks=2, timeout=300, meddle=None, wrapper=None):
    """Runs one attempt of `engine`. `spec` has fields in addition to those that make the run short.

    meddle(directory, processes): called when all processes have started.
    wrapper: a script in this folder that runs the engine's script, which is its argument."""
    fields = _fields(engine, ranks, spec)
    if engine.startswith("native/"):
        argv, mpi, one_process = [trainer()], fields.get("backend", "mpi") == "mpi" and ranks > 1, False
    else:
        what = ENGINES[engine]
        argv, mpi, one_process = [python_of(engine), os.path.join(ADAPTERS, what.script)], what.mpi, what.one_process
        if wrapper:
            argv.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), wrapper))
    with tempfile.TemporaryDirectory(prefix="scalelab-frameworks-") as directory:
        with open(os.path.join(directory, "spec.json"), "w", encoding="utf-8") as file:
            json.dump(fields, file)
        status, errors = _start(argv, directory, ranks, mpi, one_process, timeout, meddle)
        events = [_events(os.path.join(directory, f"events-{rank}.jsonl")) for rank in range(ranks)]
        saved = os.path.join(directory, "parameters.safetensors")
        parameters = recipe.read_safetensors(saved) if os.path.exists(saved) else {}
    return Result(status, events, errors, parameters)


def _start(argv, directory, ranks, mpi, one_process, timeout, meddle):
    environment = {
        **os.environ,
        "SCALELAB_TRAINER": trainer(),
        "SCALELAB_SPEC": os.path.join(directory, "spec.json"),
        "SCALELAB_ATTEMPT_DIR": directory,
        "WORLD_SIZE": str(ranks),
        "OMP_NUM_THREADS": "1",
    }
    if argv[0] == trainer():
        environment.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")  # as the worker does
    if mpi:
        rank = "RANK=$OMPI_COMM_WORLD_RANK LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK"
        script = f'{rank} SCALELAB_EVENTS={directory}/events-$OMPI_COMM_WORLD_RANK.jsonl exec "$@"'
        launcher = ["mpirun", "--oversubscribe", "--bind-to", "none", "--mca", "plm", "isolated"]
        launcher += ["--allow-run-as-root"] if os.geteuid() == 0 else []
        commands = [([*launcher, "-np", str(ranks), "sh", "-c", script, "sh", *argv], environment)]
    else:
        commands = []
        for rank in range(1 if one_process else ranks):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "SCALELAB_EVENTS": f"{directory}/events-{rank}.jsonl"}
            own.update({"SCALELAB_REPLICAS": str(ranks)} if one_process else {})
            commands.append((argv, {**environment, **own}))
    with open(os.path.join(directory, "errors"), "w+", encoding="utf-8", errors="replace") as errors:
        running = [subprocess.Popen(c, env=e, stdout=errors, stderr=errors, start_new_session=True) for c, e in commands]
        try:
            if meddle is not None:
                meddle(directory, running)
            status = max(abs(process.wait(timeout)) for process in running)
        finally:
            for process in running:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        errors.seek(0)
        return status, errors.read()


def _events(path):
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]
