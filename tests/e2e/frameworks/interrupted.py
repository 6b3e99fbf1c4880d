"""Makes a rank send itself a signal in a step: run `interrupted.py ADAPTER`, or call change() after importing the adapter.

The environment variable INTERRUPT has the form "RANK STEP SIGNAL". Steps are counted from 0 over the run. The signal goes to the
process group of the rank, like a signal of the worker. Ranks agree after every step whether to stop, so a signal takes effect after
the step in which it arrives.

The engine's model gets a layer of dropout, so that random numbers matter. In the first step of a run, all ranks train on the same
images, so their losses differ only by the random numbers of dropout. In pytorch/pipeline, only block EXPENSIVE_BLOCK costs
time, so this variable determines how the model is divided.
"""
import os
import signal
import sys

import changed_adapter
import numpy as np


def change():
    from scalelab import checkpoints, training

    checkpoints.AGREEMENT = 0  # seconds
    run = training.run
    training.run = lambda engine_class: run(changed(engine_class))


def changed(engine_class):
    """Changes the engine and its models. Returns the engine."""
    add_dropout()
    if hasattr(engine_class, "_measure"):
        engine_class._measure = costs
    rank, step, name = os.environ.get("INTERRUPT", "none 0 SIGKILL").split()
    at = int(step) if rank == os.environ["RANK"] else None
    return interrupted(engine_class, at, getattr(signal, name))


def add_dropout():
    """Adds dropout before the last layer of the models in PyTorch and Keras. Models in MXNet have no dropout."""
    from scalelab.keras_models.network import Network

    linear = Network.linear
    Network.linear = lambda self, x, name, out: linear(self, self.dropout(x, 0.5), name, out)
    if "torch" in sys.modules:
        import torch

        forward = torch.nn.Linear.forward
        torch.nn.Linear.forward = lambda self, x: forward(self, torch.nn.functional.dropout(x, 0.5, self.training))


def costs(_, blocks):
    """Returns the seconds of each block."""
    seconds = [0.001] * len(blocks)
    seconds[int(os.environ.get("EXPENSIVE_BLOCK", "0"))] = 1.0
    return seconds


def interrupted(engine_class, at, number):
    """Changes the engine so that it sends signal `number` to its process group in step `at`, if it is not None, and trains on the
    same images on all ranks in the first step. Returns the engine."""
    step, load = engine_class.step, engine_class.load
    steps = {"done": 0}

    def load_and_count(self, directory):
        steps["done"] = int(directory.rsplit("-", 1)[1])
        return load(self, directory)

    def changed_step(self, images, labels, rate):
        if steps["done"] == 0:
            images, labels = np.random.default_rng(0).random(images.shape, np.float32), labels * 0
        if steps["done"] == at:
            os.killpg(0, number)
        steps["done"] += 1
        return step(self, images, labels, rate)

    engine_class.load, engine_class.step = load_and_count, changed_step
    return engine_class


if __name__ == "__main__":
    changed_adapter.main(change)
