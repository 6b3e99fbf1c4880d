"""Compares the models of Keras and MXNet with PyTorch's, with the same weights: `models_test.py KIND`, a KIND of forward.py.

Exit status 77: skipped; the reason is printed.
"""
import os
import subprocess
import sys
import tempfile
import unittest

import run

CIFAR = ("resnet20", "resnet56")  # the depths between them are built the same way
IMAGENET = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "mobilenet_v2", "alexnet", "inception_v3", "vgg16")
# Kind -> an engine of its environment, models.
KINDS = {
    "keras2": ("tensorflow/mirrored", CIFAR + IMAGENET),
    "tensorflow": ("keras/tensorflow", CIFAR + IMAGENET),
    "jax": ("keras/jax", CIFAR + IMAGENET),
    "keras-torch": ("keras/pytorch", CIFAR + IMAGENET),
    "mxnet": ("mxnet/kvstore", CIFAR + ("resnet50",)),
}
# Tolerance relative to the largest logit. The test prints the largest difference it measures.
TOLERANCE = 1e-4

KIND = sys.argv.pop() if len(sys.argv) > 1 else "keras2"
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
        for model in models:
            with self.subTest(model), tempfile.TemporaryDirectory() as directory:
                path = os.path.join(directory, "reference.npz")
                forward("pytorch/ddp", "torch", model, path)
                apart = float(forward(engine, KIND, model, path).split("APART")[1])
                print(f"{KIND} {model}: apart by {apart:.1e}", flush=True)
                self.assertLess(apart, TOLERANCE)


if __name__ == "__main__":
    unittest.main(verbosity=2)
