"""What an engine can be asked for, where its framework would only fail later and in its own words."""
from .errors import RunError


def check(spec, backends, gpu, precisions=("fp32", "amp-bf16"), gpu_precisions=("tf32", "amp-fp16")):
    """`backends`: names beside "auto"; `gpu`: whether the run trains on GPUs, where `gpu_precisions` are possible too."""
    allowed = ("auto", *backends)
    if spec.backend not in allowed:
        raise RunError(f'engine {spec.engine} takes backend {_names(allowed)}, not "{spec.backend}"', "configuration")
    if spec.backend == "nccl" and not gpu:
        raise RunError('backend "nccl" needs a GPU: use auto', "configuration")
    check_precision(spec, gpu, precisions, gpu_precisions)


def check_precision(spec, gpu, precisions=("fp32", "amp-bf16"), gpu_precisions=("tf32", "amp-fp16")):
    if spec.precision in precisions or (gpu and spec.precision in gpu_precisions):
        return
    if spec.precision in ("tf32", "amp-fp16") and not gpu:
        raise RunError(f'precision "{spec.precision}" needs a GPU: on a CPU use {_names(precisions)}', "configuration")
    known = precisions + gpu_precisions if gpu else precisions
    raise RunError(f'engine {spec.engine} has precision {_names(known)}, not "{spec.precision}"', "configuration")


def _names(names):
    return " or ".join(f'"{name}"' for name in names)
