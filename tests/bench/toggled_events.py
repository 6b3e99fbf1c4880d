"""Measures the cost of step events, for `scalelab-bench events`. Arguments: the adapter, and the file for the result.

Trains with an adapter whose ranks write events for about half of the steps, which are chosen at random and are the same on all
ranks. Writes the median duration of the steps that follow a step with an event, and of those that follow a step without one. Because
both kinds occur in the same process, neither the state of the machine nor the memory layout favours one of them.
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
    # Seconds of measured steps, by whether the previous step wrote an event. The time of a step begins with that writing.
    seconds = {True: [], False: []}

    def add(self, total, times):
        super().add(total, times)
        if self.steps > self._warmup:
            self.seconds[Events.told].append(total)


training.Events, training.RunMeter = Events, RunMeter
runpy.run_path(ADAPTER, run_name="__main__")
