"""scalelab-trainer as a helper of an adapter: what only it can know, every engine gets from it."""
import os

from .errors import RunError


def program(spec):
    """(path, environment to start it with for the same specification)."""
    path = os.environ.get("SCALELAB_TRAINER", "")
    if not path:
        raise RunError(
            "SCALELAB_TRAINER is not set: it must name scalelab-trainer, whose initial weights every engine starts from",
            "configuration",
        )
    # Not a rank of this rank's MPI job.
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMIX_", "PRTE_"))}
    return path, {**environment, "SCALELAB_SPEC": spec.path}


def reason(errors, status):
    """Why it ended: the last line of what it wrote to standard error."""
    lines = errors.decode(errors="replace").strip().splitlines() or [f"exit status {status}"]
    return lines[-1].replace("scalelab-trainer: ", "", 1)
