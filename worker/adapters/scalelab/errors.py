"""How an adapter fails: exceptions, caught once in training.run, which become an `error` event and exit status 1."""


class RunError(RuntimeError):
    """One sentence for the user that names the file, field or value, and what to try.

    kind: "out_of_memory", "data", "rendezvous", "communication", "configuration" or "other", as in the `error` event.
    """

    def __init__(self, message, kind="other"):
        super().__init__(message)
        self.kind = kind


# In the messages of allocators, whatever framework they belong to.
_MEMORY = ("out of memory", "not enough memory", "can't allocate memory", "oom when allocating", "resource_exhausted")
# What communication libraries say when another rank is gone, or has not answered in time.
_PEERS = ("connection closed by peer", "connection reset by peer", "timed out waiting", "broken pipe", "ncclremoteerror",
          "watchdog caught collective operation timeout")  # fmt: skip


def describe(error):
    """(message of one line, kind) of any exception."""
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
