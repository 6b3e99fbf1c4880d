"""Time limits for waits that a framework does not limit, or cannot be told to."""
import contextlib
import os
import sys
import threading
import time

from .events import Events

_LOOK = 0.5  # seconds between two looks at the clock: nothing is asked of the thread that trains


class Deadline:
    """Ends the process when what is done under it takes longer than `seconds`: `with deadline("a step"): ...`.

    The thread that waits is inside of the framework and cannot be interrupted; so another one writes the `error` event, and
    the process ends at once, with status 1.
    """

    def __init__(self, seconds):
        self._seconds = seconds
        self._running = None  # (what, when it must have ended), or None
        self.finished = False  # the event file has its last event: nothing follows a `finish`
        threading.Thread(target=self._watch, daemon=True).start()

    @contextlib.contextmanager
    def __call__(self, what, more=0):
        """`more` seconds are allowed beyond those of the deadline."""
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
    """From any thread: writes the `error` event, if it is to be told, and ends the process at once."""
    print(message, file=sys.stderr, flush=True)
    if tell:
        Events(os.environ.get("SCALELAB_EVENTS", "")).error(message, "communication")
    os._exit(1)
