"""Horovod's settings of a run, which it takes from its environment before init."""
import importlib
import os

from .errors import RunError


def set_environment(spec):
    """The RunSpec's fields for Horovod mean the same here as for native/horovod."""
    os.environ.update(
        HOROVOD_FUSION_THRESHOLD=str(spec.fusion_threshold_mib << 20),
        HOROVOD_CYCLE_TIME=str(spec.cycle_time_ms),
        HOROVOD_CACHE_CAPACITY=str(spec.cache_capacity),
        HOROVOD_STALL_CHECK_TIME_SECONDS=str(max(1, round(spec.stall_warning_s))),
        HOROVOD_STALL_SHUTDOWN_TIME_SECONDS=str(max(1, round(spec.comm_timeout_s))),
    )
    if spec.stall_warning_s == 0:
        os.environ["HOROVOD_STALL_CHECK_DISABLE"] = "1"
    if spec.autotune:
        os.environ["HOROVOD_AUTOTUNE"] = "1"
    if spec.timeline:
        os.environ["HOROVOD_TIMELINE"] = os.path.join(os.environ.get("SCALELAB_ATTEMPT_DIR", "."), "horovod-timeline.json")


def start(spec, framework, ranks):
    """The module horovod.<framework>, initialised; all ranks that the run has must be in the MPI launcher's job."""
    set_environment(spec)
    hvd = importlib.import_module(f"horovod.{framework}")
    hvd.init()
    if hvd.size() != ranks:
        raise RunError(
            f"the MPI launcher has made a job of {hvd.size()} ranks, the run has {ranks}: start the ranks by mpirun, or by srun "
            "with an MPI type that Horovod's MPI library knows, such as --mpi=pmix",
            "rendezvous",
        )
    return hvd
