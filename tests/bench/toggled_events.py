"""Trains with an adapter whose ranks tell of about every second step, and writes how long steps take after one that was told of
and after one that was not. For `scalelab-bench events`; argv: the adapter, and the file for what it found.

Which steps are told of is drawn by chance, the same on all ranks: one training has both kinds in one process, one after the
other, so that neither the machine nor how memory happened to be laid out sides with one of them.
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
    seconds = {True: [], False: []}  # of measured steps, by whether the one before was told of: a step's time begins with that

    def add(self, total, times):
        super().add(total, times)
        if self.steps > self._warmup:
            self.seconds[Events.told].append(total)


training.Events, training.RunMeter = Events, RunMeter
runpy.run_path(ADAPTER, run_name="__main__")
