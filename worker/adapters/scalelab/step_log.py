"""Writes the events of steps when their results are available, and adds them up."""
import collections
import dataclasses
import time

# Greatest number of steps with pending results. Some engines return results later, to avoid waiting for a device in each step.
_AHEAD = 16


@dataclasses.dataclass
class EpochSums:
    """Sums over the steps of an epoch on this rank."""

    loss: float = 0.0  # sum of the losses of all samples
    correct: float = 0.0
    samples: float = 0.0
    seconds: float = 0.0


class StepLog:
    """Writes the events of an epoch's steps."""

    def __init__(self, events, meter, rank, sums):
        self._events, self._meter, self._rank = events, meter, rank
        self._waiting = collections.deque()
        self._ended = time.perf_counter()  # when the last step with a later result ended
        self.sums = sums
        self.reported = False  # whether the event of a step was written

    def add(self, place, result, total, data_seconds, rate, samples):
        self._waiting.append((place, result, total, data_seconds, rate, samples))
        while self._waiting and (len(self._waiting) > _AHEAD or not callable(self._waiting[0][1])):
            self._report(*self._waiting.popleft())

    def end(self):
        while self._waiting:
            self._report(*self._waiting.popleft())

    def resume(self):
        """Continues after a pause. The time of the pause is not part of a step."""
        self._ended = time.perf_counter()

    def _report(self, place, result, total, data_seconds, rate, samples):
        if callable(result):
            result = result()
            before, self._ended = self._ended, time.perf_counter()
            total = self._ended - before
        times = {"step/total_s": total, "step/data_s": data_seconds, **result.times}
        self.sums.loss += result.loss * samples
        self.sums.correct += result.correct
        self.sums.samples += samples
        self.sums.seconds += times["step/total_s"]
        self._meter.add(times["step/total_s"], times)
        metrics = {**times, **result.metrics, "train/loss": result.loss}
        if self._rank == 0:
            metrics["train/learning_rate"] = rate
        self._events.step(*place, metrics)
        self.reported = True
