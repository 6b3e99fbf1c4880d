"""A rank of an engine without a framework, for tests of the training loop. Argument: the failure to simulate, or nothing."""
import os
import sys
import threading
import time

import fixture  # noqa: F401
from scalelab import training

COPIED = 256 << 20  # bytes

if "lacking" in sys.argv:
    training.ENGINES["toy/engine"] = {"environment": "toys"}
    with training.importing("toy/engine"):
        import scalelab.no_such_framework  # noqa: F401


class Toy(training.Engine):
    name, framework = "toy/engine", "toy"
    one_process = "replicas" in sys.argv

    @staticmethod
    def version():
        return "toy 1"

    def __init__(self, spec, data, rank, ranks, parameters):
        self.spec, self.weights, self.steps = spec, parameters, 0
        if "memory" in sys.argv:
            raise MemoryError()

    def prepare(self, images, labels):
        if "prepares" not in sys.argv:
            return images, labels
        assert threading.current_thread() is not threading.main_thread()
        self.prepared = getattr(self, "prepared", 0) + 1
        return self.prepared, labels

    def later(self):
        """Returns a function that waits for the end of a step on a device that needs 10 ms for each step."""
        self.end = max(time.perf_counter(), getattr(self, "end", 0)) + 0.01
        end = self.end

        def result():
            time.sleep(max(0, end - time.perf_counter()))
            return training.StepResult(loss=1.0, correct=0)

        return result

    def step(self, images, labels, rate):
        self.steps += 1
        if "stuck" in sys.argv and self.steps > 1:
            return threading.Event().wait  # the device never ends this step
        if "slow" in sys.argv and self.steps == 2:
            time.sleep(1.2)
        if "later" in sys.argv:
            return self.later()
        if "prepares" in sys.argv:
            return training.StepResult(loss=float(images), correct=0)
        if "crash" in sys.argv and self.steps == 2:
            raise ValueError("a bug\nwith a second line")
        result = training.StepResult(
            loss=float(self.steps),
            correct=len(labels) / 2,
            times={"step/total_s": 0.5 * self.steps, "step/forward_s": 0.1, "step/backward_s": 0.2, "step/optimizer_s": 0.05,
                   "step/comm_exposed_s": 0.05 * self.steps},
            metrics={"comm/bytes": 8},
        )
        return (lambda: result) if "late" in sys.argv else result

    def evaluate(self, images, labels):
        return 3.0 * len(labels), 0.25 * len(labels)

    def sum_over_ranks(self, numbers):
        return numbers

    def parameters(self):
        if "copies" in sys.argv:
            _ = b"x" * COPIED
        return self.weights

    def run_metrics(self):
        if "reads" not in sys.argv:
            return {}
        return {"run/param": self.spec.params["width"], "run/variable": float(os.environ["SCALELAB_PARAM_WIDTH"]),
                "run/level": float(os.environ["TOY_LEVEL"]) * float(self.spec.env["TOY_LEVEL"])}

    def close(self):
        print("closed", os.getpid())


if __name__ == "__main__":
    training.run(Toy)
