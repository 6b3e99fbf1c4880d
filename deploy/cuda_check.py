"""Checks an environment of deploy/frameworks --cuda: `python cuda_check.py NAME` prints which CUDA it is for, and what could not be
checked because no GPU is there. Exits with status 1 if the framework was built without CUDA, or does not use a GPU that is there.
"""

import glob
import importlib
import importlib.metadata
import os
import sys


def _version_of(package):
    return importlib.metadata.version(package)


def _torch():
    torch = importlib.import_module("torch")
    if not torch.version.cuda:
        sys.exit(f"torch {torch.__version__} was built without CUDA")
    parts = [f"torch {torch.__version__} for CUDA {torch.version.cuda}", "NCCL " + ".".join(map(str, torch.cuda.nccl.version()))]
    return parts, torch.cuda.device_count()


def _torch_and_horovod():
    parts, gpus = _torch()
    horovod = importlib.import_module("horovod.torch")
    if not horovod.nccl_built() or not horovod.cuda_built():
        sys.exit("this Horovod was built without NCCL")
    return [*parts, f"Horovod {_version_of('horovod')} with NCCL"], gpus


def _tensorflow():
    tensorflow = importlib.import_module("tensorflow")
    build = tensorflow.sysconfig.get_build_info()
    if not tensorflow.test.is_built_with_cuda():
        sys.exit(f"tensorflow {tensorflow.__version__} was built without CUDA")
    parts = [f"tensorflow {tensorflow.__version__} for CUDA {build.get('cuda_version', '?')}"]
    return parts, len(tensorflow.config.list_physical_devices("GPU"))


def _jax():
    importlib.import_module("jax_cuda13_plugin")
    jax = importlib.import_module("jax")
    try:
        gpus = len(jax.devices("cuda"))
    except RuntimeError:
        gpus = 0
    return [f"jax {jax.__version__} for CUDA 13", f"NCCL {_version_of('nvidia-nccl-cu13')}"], gpus


_CHECKS = {
    "pytorch-cuda": _torch_and_horovod,
    "pytorch2-cuda": _torch,
    "tensorflow-cuda": _tensorflow,
    "keras-tensorflow-cuda": _tensorflow,
    "keras-jax-cuda": _jax,
}


def main():
    if len(sys.argv) != 2 or sys.argv[1] not in _CHECKS:
        sys.exit(f"usage: cuda_check.py NAME; names are {', '.join(_CHECKS)}")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    parts, gpus = _CHECKS[sys.argv[1]]()
    there = len(glob.glob("/dev/nvidia[0-9]*"))
    if there > 0 and gpus == 0:
        sys.exit(f"this machine has {there} GPUs, but {parts[0]} finds none: see if its driver supports that CUDA (nvidia-smi)")
    print(f"{sys.argv[1]}: {', '.join(parts)}; {gpus} GPUs")
    if gpus == 0:
        print(
            f"{sys.argv[1]}: not checked, because no GPU is here: that the driver of the nodes supports this CUDA, that kernels start, "
            "and that NCCL connects; run a study with gpus_per_rank: 1 and ranks: 2 to check that"
        )


if __name__ == "__main__":
    main()
