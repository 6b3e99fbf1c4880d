"""Handles signals that request the end of this process: SIGTERM, and SIGUSR1, which schedulers send before a time limit. Uses
only the standard library."""
import contextlib
import os
import signal

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
_received = {"number": 0}


def _record(number, _):
    _received["number"] = number


def record():
    """Makes this process record the two signals instead of ending. If a framework sets its own handlers later, `record` must be
    called again. May be called on the main thread only."""
    for number in SIGNALS:
        signal.signal(number, _record)


@contextlib.contextmanager
def blocked():
    """Returns a context that blocks the two signals. Processes that are started in this context do not receive the signals."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def number():
    """Returns the number of the last signal; 0 if there was none."""
    return _received["number"]


def end_process(number_of_signal):
    """Ends this process with the signal, so that its parent can detect that the process did not finish."""
    signal.signal(number_of_signal, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number_of_signal])
    os.kill(os.getpid(), number_of_signal)
    os._exit(128 + number_of_signal)
