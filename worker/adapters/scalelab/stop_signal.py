"""Requests to end this process: SIGTERM, and SIGUSR1, which schedulers send before a time limit. Standard library only."""
import contextlib
import os
import signal

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
_received = {"number": 0}


def _record(number, _):
    _received["number"] = number


def record():
    """Records the two signals from now on; they no longer end the process. A framework that has set its own handlers since then makes
    another call necessary. Only for the main thread."""
    for number in SIGNALS:
        signal.signal(number, _record)


@contextlib.contextmanager
def blocked():
    """A context in which processes are started that do not end by the two signals."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def number():
    """Returns the number of the last signal; 0 if there was none."""
    return _received["number"]


def end_process(number_of_signal):
    """Ends the process by this signal, so that its parent sees that it did not finish."""
    signal.signal(number_of_signal, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number_of_signal])
    os.kill(os.getpid(), number_of_signal)
    os._exit(128 + number_of_signal)
