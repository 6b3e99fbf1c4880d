"""Runs scalelab-trainer as a helper process that provides initial weights and images for every engine."""
import os

from .errors import RunError


def program(spec):
    """Returns (path, environment) to start scalelab-trainer with the same specification."""
    path = os.environ.get("SCALELAB_TRAINER", "")
    if not path:
        raise RunError(
            "SCALELAB_TRAINER is not set: it must name scalelab-trainer, whose initial weights every engine starts from",
            "configuration",
        )
    # Remove these variables, so that the helper does not become a rank of the MPI job.
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMIX_", "PRTE_"))}
    return path, {**environment, "SCALELAB_SPEC": spec.path}


def reason(errors, status):
    """Returns the reason of a failure: the last line that scalelab-trainer wrote to standard error."""
    lines = errors.decode(errors="replace").strip().splitlines() or [f"exit status {status}"]
    return lines[-1].replace("scalelab-trainer: ", "", 1)
