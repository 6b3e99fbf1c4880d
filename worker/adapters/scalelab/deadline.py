"""Timeouts for operations of frameworks that have no timeout of their own."""
import contextlib
import os
import sys
import threading
import time

from .events import Events

_LOOK = 0.5  # seconds between two checks of the clock; polling does not slow down the training thread


class Deadline:
    """Ends the process if the body of `with deadline("a step"): ...` takes longer than `seconds`.

    The waiting thread is inside the framework, and cannot be interrupted. Therefore another thread writes the `error` event and
    ends the process immediately with status 1.
    """

    def __init__(self, seconds):
        self._seconds = seconds
        self._running = None  # (what, deadline), or None
        self.finished = False  # whether the `finish` event was written; no event may follow it
        threading.Thread(target=self._watch, daemon=True).start()

    @contextlib.contextmanager
    def __call__(self, what, more=0):
        """Returns a context with a timeout of `more` seconds in addition to `seconds`. `what` is its name in the message."""
        self._running = (what, time.monotonic() + self._seconds + more)
        try:
            yield
        finally:
            self._running = None

    def _watch(self):
        while True:
            time.sleep(_LOOK)
            running = self._running
            if running is not None and time.monotonic() > running[1]:
                break
        fail(
            f"another rank is gone or late, see the output of all ranks: {running[0]} has taken longer than {self._seconds:g} s; "
            "raise comm_timeout_s if it is only slow",
            tell=not self.finished,
        )


def fail(message, tell=True):
    """Ends the process immediately, after writing the `error` event if `tell` is true. Any thread may call it."""
    print(message, file=sys.stderr, flush=True)
    if tell:
        Events(os.environ.get("SCALELAB_EVENTS", "")).error(message, "communication")
    os._exit(1)
