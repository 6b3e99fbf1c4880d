"""Compares the models of Keras and MXNet with PyTorch's, with the same weights. KIND is a kind of forward.py.

    models_test.py KIND DIRECTORY     compares the results of KIND with those of PyTorch
    models_test.py remove DIRECTORY   removes the directory
The first test that needs the results of PyTorch writes them into the directory. If the test is skipped, it prints the reason and
exits with status 77.
"""
import fcntl
import math
import os
import shutil
import subprocess
import sys
import unittest

import run

CIFAR = ("resnet8", "resnet56")  # the depths in between are built in the same way
IMAGENET = ("resnet18", "resnet50", "mobilenet_v2", "alexnet", "inception_v3", "vgg16")
if "SCALELAB_LONG_TESTS" in os.environ:  # the same blocks as resnet18 and resnet50, more of them
    IMAGENET += ("resnet34", "resnet101", "resnet152")
# For each kind of forward.py: an engine with the right Python environment, and the models to compare.
KINDS = {
    "keras2": ("tensorflow/mirrored", CIFAR + IMAGENET),
    "tensorflow": ("keras/tensorflow", CIFAR + IMAGENET),
    "jax": ("keras/jax", CIFAR + IMAGENET),
    "keras-torch": ("keras/pytorch", CIFAR + IMAGENET),
    "mxnet": ("mxnet/kvstore", CIFAR + ("resnet50",)),
}
# Tolerance relative to the largest logit. The test prints the largest measured difference.
TOLERANCE = 1e-4

DIRECTORY = sys.argv.pop()
KIND = sys.argv.pop()
FORWARD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "forward.py")


def forward(engine, *arguments):
    done = subprocess.run(
        [run.python_of(engine), "-B", FORWARD, *arguments], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


class Models(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        for engine in (KINDS[KIND][0], "pytorch/ddp"):
            run.python_of(engine)  # skips here, because skipping in a test itself would be an error

    def test_logits_are_those_of_pytorch(self):
        engine, models = KINDS[KIND]
        write()
        lines = forward(engine, KIND, DIRECTORY, *models).splitlines()
        apart = {words[0]: float(words[1]) for words in map(str.split, lines) if len(words) == 2 and words[0] in models}
        for model in models:
            with self.subTest(model):
                print(f"{KIND} {model}: apart by {apart.get(model, math.nan):.1e}", flush=True)
                self.assertLess(apart[model], TOLERANCE)


def write():
    """Writes the results of PyTorch, unless another test has done so."""
    os.makedirs(DIRECTORY, exist_ok=True)
    complete = os.path.join(DIRECTORY, "complete")
    with open(os.path.join(DIRECTORY, "lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(complete):
            forward("pytorch/ddp", "torch", DIRECTORY, *CIFAR, *IMAGENET)
            with open(complete, "w", encoding="utf-8"):
                pass


if __name__ == "__main__":
    if KIND == "remove":
        shutil.rmtree(DIRECTORY, ignore_errors=True)
    else:
        run.main("__main__")
