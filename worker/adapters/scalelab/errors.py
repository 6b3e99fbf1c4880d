"""Errors of an adapter: training.run catches the exception, writes an `error` event and exits with status 1."""


class RunError(RuntimeError):
    """An error for the user: one sentence that names the file, field or value, and what to try.

    kind: "out_of_memory", "data", "rendezvous", "communication", "configuration" or "other", as in the `error` event.
    """

    def __init__(self, message, kind="other"):
        super().__init__(message)
        self.kind = kind


# Parts of the messages of allocators, in all frameworks.
_MEMORY = ("out of memory", "not enough memory", "can't allocate memory", "oom when allocating", "resource_exhausted")
# Parts of the messages of communication libraries if another rank has ended or is late.
_PEERS = ("connection closed by peer", "connection reset by peer", "timed out waiting", "broken pipe", "ncclremoteerror",
          "application timeout caused pair closure",
          "watchdog caught collective operation timeout")  # fmt: skip


def describe(error):
    """Returns (message of one line, kind) of an exception."""
    text = str(error).strip()
    line = text.splitlines()[0] if text else ""
    if isinstance(error, RunError):
        return line, error.kind
    name = type(error).__name__
    if isinstance(error, MemoryError):
        return "out of host memory: try a smaller batch_per_rank", "out_of_memory"
    if any(m in text.lower() for m in _PEERS):
        return f"another rank is gone or late, see the output of all ranks: {line}", "communication"
    memory = name in ("OutOfMemoryError", "ResourceExhaustedError") or any(m in text.lower() for m in _MEMORY)
    return (f"{name}: {line}" if line else name), ("out_of_memory" if memory else "other")
