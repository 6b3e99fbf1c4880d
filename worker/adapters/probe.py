"""Checks whether an engine can run in this Python environment: `python probe.py ENGINE` prints one line of JSON and exits with 0.

{"engine":"pytorch/ddp","usable":true,"version":"torch 1.13.1","versions":{"torch":"1.13.1"},"reason":"","fix":""}
`reason` is one sentence, and `fix` is the command that solves the problem. Imports only the modules that the engine needs.
"""
import contextlib
import importlib
import json
import os
import sys


class NotUsable(Exception):
    pass


def _version(module):
    return importlib.import_module(module).__version__


def _torch_group():
    if not importlib.import_module("torch.distributed").is_available():
        raise NotUsable("this torch was built without torch.distributed")


def _gpu():
    if importlib.import_module("torch").cuda.device_count() == 0:
        raise NotUsable("pytorch/dp needs a GPU: nn.DataParallel has no replicas on a CPU")


def _fully_shard():
    version = _version("torch")
    if tuple(int(part) for part in version.split(".")[:2]) < (2, 6):
        raise NotUsable(f"pytorch/fsdp needs torch 2.6 or later, this is {version}")
    _ = importlib.import_module("torch.distributed.fsdp").fully_shard  # raises AttributeError if this torch lacks it


def _pipelining():
    try:
        importlib.import_module("torch.distributed.pipelining")
    except Exception as e:  # pylint: disable=broad-except  # older versions raise different exceptions
        raise NotUsable(f"pytorch/pipeline needs torch 2.5 or later, this is {_version('torch')}") from e


def _horovod(framework):
    def check():
        hvd = importlib.import_module(f"horovod.{framework}")  # loads the library that was built for this framework
        if not hvd.mpi_built():
            raise NotUsable("this Horovod was built without MPI")

    return check


def _keras_on(backend):
    def check():
        found = importlib.import_module("keras").backend.backend()
        if found != backend:
            raise NotUsable(f"Keras runs on {found} here, not on {backend}")

    return check


# Maps each engine to its environment, the modules to import, the environment variables to set before the import, and further
# checks. Messages list the versions in the order of the modules.
_ENGINES = {
    "pytorch/ddp": ("pytorch", ("torch",), {}, (_torch_group,)),
    "pytorch/fsdp": ("pytorch2", ("torch",), {}, (_torch_group, _fully_shard)),
    "pytorch/zero1": ("pytorch", ("torch",), {}, (_torch_group,)),
    "pytorch/powersgd": ("pytorch", ("torch",), {}, (_torch_group,)),
    "pytorch/local-sgd": ("pytorch", ("torch",), {}, (_torch_group,)),
    "pytorch/pipeline": ("pytorch2", ("torch",), {}, (_torch_group, _pipelining)),
    "pytorch/dp": ("pytorch", ("torch",), {}, (_gpu,)),
    "horovod/pytorch": ("pytorch", ("horovod", "torch"), {}, (_horovod("torch"),)),
    "horovod/tensorflow": ("tensorflow", ("horovod", "tensorflow"), {}, (_horovod("tensorflow"),)),
    "horovod/mxnet": ("mxnet", ("horovod", "mxnet"), {}, (_horovod("mxnet"),)),
    "tensorflow/mirrored": ("tensorflow", ("tensorflow",), {}, ()),
    "tensorflow/multiworker-mirrored": ("tensorflow", ("tensorflow",), {}, ()),
    "keras/tensorflow": (
        "keras-tensorflow",
        ("keras", "tensorflow"),
        {"KERAS_BACKEND": "tensorflow"},
        (_keras_on("tensorflow"),),
    ),
    "keras/jax": ("keras-jax", ("keras", "jax"), {"KERAS_BACKEND": "jax"}, (_keras_on("jax"),)),
    "keras/pytorch": ("pytorch2", ("keras", "torch"), {"KERAS_BACKEND": "torch"}, (_keras_on("torch"), _torch_group)),
    "mxnet/kvstore": ("mxnet", ("mxnet",), {}, ()),
}


def probe(engine):
    environment, modules, variables, checks = _ENGINES[engine]
    os.environ.update(variables)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    versions, reason, fix = {}, "", ""
    try:
        for module in modules:
            try:
                versions[module] = str(_version(module))
            except Exception as e:  # pylint: disable=broad-except
                fix = f"deploy/frameworks {environment}"
                raise NotUsable(f"cannot import {module}: {_line(e)}") from e
        for check in checks:
            check()
    except NotUsable as e:
        reason = str(e)
    except Exception as e:  # pylint: disable=broad-except
        reason, fix = f"{type(e).__name__}: {_line(e)}", f"deploy/frameworks {environment}"
    if reason and not fix and "GPU" not in reason:
        fix = f"deploy/frameworks {environment}"
    version = "" if reason else ", ".join(f"{module} {versions[module]}" for module in modules)
    return {
        "engine": engine,
        "usable": not reason,
        "version": version,
        "versions": versions,
        "reason": reason,
        "fix": fix,
    }


def _line(error):
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def main():
    if len(sys.argv) != 2 or sys.argv[1] not in _ENGINES:
        sys.exit(f"usage: probe.py ENGINE; engines are {', '.join(_ENGINES)}")
    # Frameworks print banners to standard output, which must contain only the line of JSON, so redirect their output.
    with contextlib.redirect_stdout(sys.stderr):
        answer = probe(sys.argv[1])
    print(json.dumps(answer, separators=(",", ":")), flush=True)
    os._exit(0)  # does not wait for threads that frameworks have started


if __name__ == "__main__":
    main()
