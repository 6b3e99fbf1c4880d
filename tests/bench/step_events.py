"""Prints the microseconds that an adapter needs to measure one step and write its event: the minimum of several rounds, which
excludes the influence of other processes. `scalelab-bench events` starts it. Argument: a directory to write to."""
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "worker", "adapters"))
from scalelab import events, meter, training  # noqa: E402

STEPS = 2000


def main():
    log = training._EpochLog(events.Events(os.path.join(sys.argv[1], "step-events")), meter.RunMeter(0, 64), rank=0)
    parts = ("step/forward_s", "step/backward_s", "step/comm_exposed_s", "step/optimizer_s")
    result = training.StepResult(2.302585, 3, dict.fromkeys(parts, 0.0123456789), {"comm/bytes": 1078888})
    least = float("inf")
    for _ in range(20):
        begin = time.perf_counter()
        for step in range(STEPS):
            log.add((0, step), result, 0.0712345678, 0.0001234567, 0.1, 32)
        least = min(least, (time.perf_counter() - begin) / STEPS)
    print(least * 1e6)


if __name__ == "__main__":
    main()
