"""Lets a rank send itself a signal in a step: change() after the import of the adapter.

INTERRUPT: "RANK STEP SIGNAL"; steps are counted from 0 over the run. Ranks agree after every step whether to stop, so that a signal has
its effect after the step that it comes in.
"""
import os
import signal


def change():
    from scalelab import checkpoints, training

    checkpoints.AGREEMENT = 0  # seconds
    rank, step, name = os.environ.get("INTERRUPT", "none 0 SIGKILL").split()
    if rank == os.environ["RANK"]:
        run = training.run
        training.run = lambda engine_class: run(interrupted(engine_class, int(step), getattr(signal, name)))


def interrupted(engine_class, at, number):
    """Returns the engine, which sends signal `number` to its process in step `at`."""
    step, load = engine_class.step, engine_class.load
    steps = {"done": 0}

    def load_and_count(self, directory):
        steps["done"] = int(directory.rsplit("-", 1)[1])
        return load(self, directory)

    def step_with_signal(self, *arguments):
        if steps["done"] == at:
            os.kill(os.getpid(), number)
        steps["done"] += 1
        return step(self, *arguments)

    engine_class.load, engine_class.step = load_and_count, step_with_signal
    return engine_class
