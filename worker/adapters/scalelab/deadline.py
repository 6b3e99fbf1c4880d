"""Timeouts for operations of frameworks that have no timeout of their own."""
import contextlib
import os
import sys
import threading
import time

from .events import Events

_LOOK = 0.5  # seconds between two checks of the clock; polling does not slow down the training thread
_LONGEST_LOOK = 2.0  # if a check takes longer, the process was stopped in the meantime


class Deadline:
    """Ends the process if the body of `with deadline("a step"): ...` takes longer than `seconds`.

    The waiting thread is inside the framework, and cannot be interrupted. Therefore another thread writes the `error` event and
    ends the process immediately with status 1.

    Time during which the process is stopped, for example because Slurm has suspended its job, does not count.
    If the run has only one process, there is no timeout, because the process waits for no other.
    """

    def __init__(self, seconds, processes):
        self._seconds = seconds
        self._running = None  # (what, deadline in _now), or None
        self._stopped = 0.0  # seconds during which the process was stopped
        self.finished = False  # whether the `finish` event was written; no event may follow it
        if processes > 1:
            threading.Thread(target=self._watch, daemon=True).start()

    @contextlib.contextmanager
    def __call__(self, what, more=0):
        """Returns a context with a timeout of `more` seconds in addition to `seconds`. `what` is its name in the message."""
        self._running = (what, self._now() + self._seconds + more)
        try:
            yield
        finally:
            self._running = None

    def _now(self):
        return time.monotonic() - self._stopped

    def _watch(self):
        while True:
            before = time.monotonic()
            time.sleep(_LOOK)
            look = time.monotonic() - before
            if look > _LONGEST_LOOK:
                self._stopped += look - _LOOK
            running = self._running
            if running is not None and self._now() > running[1]:
                break
        fail(
            f"another rank is gone or late, see the output of all ranks: {running[0]} has taken longer than {self._seconds:g} s; "
            "raise comm_timeout_s if it is only slow",
            tell=not self.finished,
        )


def fail(message, tell=True):
    """Ends the process immediately, after writing the `error` event if `tell` is true. Any thread may call it."""
    try:
        with contextlib.suppress(OSError):  # standard error may be a file on a full disk
            print(message, file=sys.stderr, flush=True)
        if tell:
            Events(os.environ.get("SCALELAB_EVENTS", "")).error(message, "communication")
    finally:
        os._exit(1)  # also if the event file cannot be written: otherwise the main thread would wait forever
