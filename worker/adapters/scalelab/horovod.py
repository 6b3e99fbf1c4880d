"""Starts Horovod. hvd.init reads its settings from environment variables, which are the same for all frameworks."""
import importlib
import os

from .errors import RunError
from .training import importing


def configure(spec):
    """Sets Horovod's environment variables. Must be called before hvd.init."""
    spec.set_variables(
        HOROVOD_FUSION_THRESHOLD=str(spec.fusion_threshold_mib << 20),
        HOROVOD_CYCLE_TIME=str(spec.cycle_time_ms),
        HOROVOD_CACHE_CAPACITY=str(spec.cache_capacity),
        HOROVOD_AUTOTUNE=str(int(spec.autotune)),
        HOROVOD_STALL_CHECK_DISABLE=str(int(spec.stall_warning_s == 0)),
        HOROVOD_STALL_CHECK_TIME_SECONDS=str(max(1, round(spec.stall_warning_s))),
        # Ranks that wait for a rank that has ended fail with a message. Without this variable they would wait forever.
        HOROVOD_STALL_SHUTDOWN_TIME_SECONDS=str(max(1, round(max(spec.comm_timeout_s, spec.stall_warning_s)))),
    )
    if spec.timeline:
        directory = os.environ.get("SCALELAB_ATTEMPT_DIR", ".")
        spec.set_variables(HOROVOD_TIMELINE=os.path.join(directory, "horovod-timeline.json"))


def start(spec, framework, rank, ranks):
    """Returns the module horovod.<framework> after hvd.init. All ranks of the run must be in the MPI launcher's job."""
    configure(spec)
    with importing(spec.engine):
        hvd = importlib.import_module(f"horovod.{framework}")
    hvd.init()
    if (hvd.rank(), hvd.size()) != (rank, ranks):
        raise RunError(
            f"Horovod sees this process as rank {hvd.rank()} of {hvd.size()}, not {rank} of {ranks}: start the ranks with "
            "a launcher of the MPI that Horovod was built for",
            "rendezvous",
        )
    return hvd
