"""Trains with an adapter whose ranks write the events of about half of the steps. Writes how long steps take after a step with an
event and after a step without one. For `scalelab-bench events`; argv: the adapter, and the file for the result.

The steps with events are chosen at random, the same on all ranks. So one training has both kinds of steps in one process, one after
the other, and neither the machine nor the memory layout favours one of them.
"""
import json
import os
import random
import runpy
import statistics
import sys

ADAPTER, RESULT = sys.argv[1:3]
sys.path.insert(0, os.path.dirname(os.path.abspath(ADAPTER)))
from scalelab import training  # noqa: E402


class Events(training.Events):
    told = None
    _coins = random.Random(20)

    def step(self, *step):
        Events.told = self._coins.random() < 0.5
        if Events.told:
            super().step(*step)

    def finish(self, *end):
        with open(RESULT, "w", encoding="ascii") as file:
            json.dump({"with": statistics.median(RunMeter.seconds[True]), "without": statistics.median(RunMeter.seconds[False])}, file)
        super().finish(*end)


class RunMeter(training.RunMeter):
    seconds = {True: [], False: []}  # of measured steps, by whether the previous step wrote an event: the time of a step begins with that

    def add(self, total, times):
        super().add(total, times)
        if self.steps > self._warmup:
            self.seconds[Events.told].append(total)


training.Events, training.RunMeter = Events, RunMeter
runpy.run_path(ADAPTER, run_name="__main__")
