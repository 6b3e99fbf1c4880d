"""Compares images that the framework converts, as in runs on GPUs, with images that it gets as floats, on a CPU:
`engine_test.py ENGINE bytes`."""
import os
import subprocess
import unittest

import numpy as np
import run

ENGINE = run.ENGINE
# Engines whose environments convert.py runs in, and its kind. tensorflow/mirrored has the environment of all engines on Keras 2.
KINDS = {"tensorflow/mirrored": "tensorflow", "keras/tensorflow": "tensorflow", "keras/jax": "jax"}
FEW = {"global_batch": 16, "max_steps": "3", "warmup_steps": 1, "evaluate": True}


class Bytes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        run.python_of(ENGINE)  # skips

    def test_training_and_evaluation_get_the_same_images(self):
        floats, converted = (run.run(ENGINE, FEW, wrapper=wrapper) for wrapper in (None, "bytes_on_cpu"))
        for result in (floats, converted):
            self.assertEqual(result.status, 0, result.errors)
        for rank in range(2):
            self.assertEqual(converted.losses(rank), floats.losses(rank))
        ours, theirs = (result.of(0, "epoch")[0]["metrics"] for result in (floats, converted))
        for name in ("eval/loss", "eval/accuracy", "eval/samples"):
            self.assertEqual(theirs[name], ours[name], name)
        for name, value in floats.parameters.items():
            np.testing.assert_array_equal(converted.parameters[name], value, err_msg=name)

    @unittest.skipUnless(ENGINE in KINDS, "another engine converts images with the same code in the same environment")
    def test_conversion_is_exact(self):
        convert = os.path.join(run.FOLDER, "convert.py")
        done = subprocess.run(
            [run.python_of(ENGINE), "-B", convert, KINDS[ENGINE]], capture_output=True, text=True, timeout=300, check=False
        )
        self.assertEqual(done.returncode, 0, done.stderr[-4000:])
