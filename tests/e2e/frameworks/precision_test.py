"""Compares an engine's mixed precisions with native/ddp in single precision, on two ranks: `engine_test.py ENGINE precision`.

amp-fp16 is for GPUs. This test runs it on CPUs (half_on_cpu.py), where the arithmetic is the same. The test prints the measured
differences.
"""
import os
import unittest

import numpy as np
import run

# Tolerances relative to a loss in single precision, in each step. Numbers in bfloat16 have a relative error of up
# to 2^-8, in float16 of up to 2^-11. Measured: 2.7e-3 and 7e-4.
TOLERANCE = {"amp-bf16": 3e-2, "amp-fp16": 5e-3}
# Minimum difference between the losses of reduced and single precision. A smaller difference would mean that the
# reduced precision was not used.
ROUNDED = 1e-6
# Engines that support float16 on CPUs. PyTorch 1.13 and MXNet do not.
HALF_ON_CPU = ("pytorch/fsdp", "keras/pytorch", "keras/jax", "keras/tensorflow", "horovod/tensorflow", "tensorflow/mirrored",
               "tensorflow/multiworker-mirrored")

ENGINE = run.ENGINE
# Reduced precisions are slow on CPUs: with TensorFlow 2.15, a step of 32 images in float16 takes seconds.
STEPS = 5 if "SCALELAB_LONG_TESTS" in os.environ else 2
FEW = {"global_batch": 8, "max_steps": str(STEPS)}


class Precision(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        run.python_of(ENGINE)  # skips

    def near_the_native_one(self, precision, spec, **options):
        native = run.native(spec)
        self.assertEqual(native.status, 0, native.errors)
        result = run.run(ENGINE, {"precision": precision, **spec}, **options)
        if "only on processors with AVX-512" in result.errors:
            self.skipTest("this processor has no AVX-512")
        self.assertEqual(result.status, 0, result.errors)
        ours, theirs = (np.mean([r.losses(rank) for rank in range(2)], axis=0) for r in (native, result))
        self.assertEqual(len(theirs), len(ours))
        apart = np.abs(theirs / ours - 1).max()
        print(f"{ENGINE}, {precision}: losses apart from single precision by {apart:.1e}")
        self.assertLess(apart, TOLERANCE[precision])
        self.assertGreater(apart, ROUNDED)
        return result

    def test_amp_bf16_is_near_single_precision(self):
        self.near_the_native_one("amp-bf16", FEW)

    @unittest.skipUnless(ENGINE in HALF_ON_CPU, "no half precision on CPUs")
    def test_amp_fp16_is_near_single_precision(self):
        result = self.near_the_native_one("amp-fp16", FEW, wrapper="half_on_cpu")
        for rank in range(2):
            scales = [step["metrics"]["train/loss_scale"] for step in result.of(rank, "step")]
            self.assertEqual(scales, [1024] * STEPS)

    @unittest.skipUnless(ENGINE in HALF_ON_CPU, "no half precision on CPUs")
    def test_a_gradient_that_overflows_on_one_rank_leaves_the_step_out_on_all(self):
        start = run.native({"max_steps": "1", "learning_rate": 0, "weight_decay": 0}, ranks=1).parameters
        os.environ["SPOIL_FIRST_STEP"] = "1"
        self.addCleanup(os.environ.pop, "SPOIL_FIRST_STEP")
        left_out = run.run(ENGINE, {**FEW, "max_steps": "1", "precision": "amp-fp16"}, wrapper="half_on_cpu")
        self.assertEqual(left_out.status, 0, left_out.errors)
        for rank in range(2):
            self.assertEqual(left_out.of(rank, "step")[0]["metrics"]["train/loss_scale"], 512)
        for name, value in start.items():
            if not run.recipe.is_buffer(name):
                np.testing.assert_array_equal(left_out.parameters[name], value, err_msg=name)
