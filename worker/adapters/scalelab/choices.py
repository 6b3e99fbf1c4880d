"""Checks for options that an engine does not support. Its framework would report them later and less clearly."""
from .errors import RunError


def check(spec, backends, gpu, precisions=("fp32", "amp-bf16"), gpu_precisions=("tf32", "amp-fp16")):
    """Raises RunError for an unsupported backend or precision.

    `backends` are the supported names in addition to "auto". `gpu` is true if the run trains on GPUs, which also support
    `gpu_precisions`.
    """
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


def needs_gpu(spec):
    return spec.device == "cuda" or (spec.device == "auto" and spec.gpus_per_rank > 0)


def refuse_without_gpu(spec, framework, gpus, local_rank=0):
    """Raises RunError for a run that needs GPU `local_rank` of this node, because `framework` finds only `gpus` GPUs."""
    wish = 'device is "cuda"' if spec.device == "cuda" else f"gpus_per_rank is {spec.gpus_per_rank}"
    place = f", and this is local rank {local_rank}" if gpus else ""
    raise RunError(
        f'{wish}, but {framework} sees {gpus} GPUs here{place}: use an environment whose {framework.split()[0]} has CUDA, check '
        'nvidia-smi and CUDA_VISIBLE_DEVICES, or set device to "cpu"',
        "configuration",
    )


def _names(names):
    return " or ".join(f'"{name}"' for name in names)
