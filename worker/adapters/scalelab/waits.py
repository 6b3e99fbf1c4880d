"""Calls the collective methods of an engine with the timeout comm_timeout_s, if the run has several processes."""
from .deadline import Deadline

# Additional seconds for the first step, in which frameworks compile.
_FIRST_STEP = 300


class Waits:
    def __init__(self, engine, seconds, processes):
        self._engine, self._deadline = engine, Deadline(seconds, processes)
        self._stepped = self._reported = False

    def step(self, images, labels, rate):
        with self._deadline("a step", 0 if self._stepped else _FIRST_STEP):
            result = self._engine.step(images, labels, rate)
        self._stepped = True
        return result

    def add(self, log, *step):
        """Adds a step to the log, which may wait for the results of earlier steps."""
        with self._deadline("a step", 0 if self._reported else _FIRST_STEP):
            log.add(*step)
        self._reported = self._reported or log.reported

    def end(self, log):
        with self._deadline("the last steps of an epoch"):
            log.end()

    def begin_evaluation(self):
        with self._deadline("sharing the running statistics"):
            self._engine.begin_evaluation()

    def sum(self, numbers):
        with self._deadline("a sum over all ranks"):
            return self._engine.sum_over_ranks(numbers)

    def barrier(self):
        with self._deadline("waiting for all ranks", _FIRST_STEP):
            self._engine.barrier()

    def load(self, directory):
        with self._deadline("continuing from a checkpoint", _FIRST_STEP):
            self._engine.load(directory)

    def parameters(self):
        with self._deadline("collecting the parameters"):
            return self._engine.parameters()

    def finished(self):
        """Records that the `finish` event was written. No event may follow it."""
        self._deadline.finished = True

    def close(self):
        with self._deadline("leaving the other ranks"):
            self._engine.close()
