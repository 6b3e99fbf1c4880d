"""Computes the metrics of the `finish` event from the times of the steps, like worker/trainer/metrics/run_meter.h.

The times of a step are a dict of seconds by metric name. It does not contain times that a framework does not expose.
"""
import statistics

COMPUTE = ("step/forward_s", "step/backward_s", "step/optimizer_s")
EXPOSED = "step/comm_exposed_s"
DATA = "step/data_s"


class RunMeter:
    def __init__(self, warmup_steps, global_batch):
        self._warmup, self._batch = warmup_steps, global_batch
        self._first = warmup_steps  # index of the first step that is measured
        self.steps = 0
        self._totals = []
        self._sums = dict.fromkeys(COMPUTE + (EXPOSED, DATA), 0.0)

    def add(self, total, times):
        self.steps += 1
        if self.steps <= self._first:
            return
        self._totals.append(total)
        for name in self._sums:
            # If a time is missing in one step, it is not known for the run.
            self._sums[name] = self._sums[name] + times[name] if name in times and self._sums[name] is not None else None

    def state(self):
        """Returns everything that was added, as a JSON object for `continue_after`."""
        return {"totals": self._totals, "sums": self._sums}

    def continue_after(self, steps, state):
        """Continues after `steps` steps of an earlier process. The next warm-up steps are not measured, because this process has
        to warm up too."""
        self.steps, self._first = steps, steps + self._warmup
        self._totals, self._sums = state["totals"], state["sums"]

    def mean_compute(self):
        """Returns the mean seconds of computation in a measured step, or None if they are unknown."""
        parts = [self._sums[name] for name in COMPUTE]
        return None if not self._totals or None in parts else sum(parts) / len(self._totals)

    def metrics(self, samples_per_epoch):
        """Returns the metrics. Returns none if no step was measured. Includes the exposed and the data time only if all measured
        steps have them."""
        if not self._totals:
            return {}
        median, total = statistics.median(self._totals), sum(self._totals)
        result = {
            "run/throughput": self._batch / median,
            "run/throughput_mean": self._batch * len(self._totals) / total,
            "run/step_seconds": median,
            "run/mean_step_s": total / len(self._totals),
            "run/epoch_seconds": samples_per_epoch / (self._batch / median),
        }
        if self._sums[EXPOSED] is not None:
            result["run/comm_share"] = self._sums[EXPOSED] / total
            result["run/comm_exposed_s"] = self._sums[EXPOSED] / len(self._totals)
        if self._sums[DATA] is not None:
            result["run/data_s"] = self._sums[DATA] / len(self._totals)
        return result


def straggler_skew(compute):
    """Returns (slowest / mean) - 1 of the ranks' mean compute times; 0 if nothing was measured."""
    total = sum(compute)
    return max(compute) / (total / len(compute)) - 1 if total > 0 else 0.0


def peak_resident_bytes():
    """Returns the peak resident set of this process (VmHWM), or None if /proc does not have it."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None
