"""Compares `compile: true` with the same run without it, on two ranks: `engine_test.py ENGINE compile`."""
import os
import unittest

import numpy as np
import run

# Tolerance relative to a loss, in each of five steps. Compiled code adds numbers in a different order. Measured: up to 2e-6.
LOSS_TOLERANCE = 1e-4
FEW = {"global_batch": 16, "max_steps": "5", "warmup_steps": 1, "evaluate": True}

ENGINE = run.ENGINE
# pytorch/zero1 compiles with the code of pytorch/ddp.
SKIPPED = ENGINE == "pytorch/zero1" and "SCALELAB_LONG_TESTS" not in os.environ


@unittest.skipIf(SKIPPED, "only with SCALELAB_LONG_TESTS=1")
class Compile(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # The environment `pytorch` contains Debian's PyTorch, which has no compiler.
        cls.addClassCleanup(setattr, run.ENGINES[ENGINE], "environment", run.ENGINES[ENGINE].environment)
        run.ENGINES[ENGINE].environment = "pytorch2"
        run.python_of(ENGINE)  # skips
        cls.compiled = run.run(ENGINE, {**FEW, "compile": True}, timeout=400)

    def test_a_compiled_model_trains_like_the_other(self):
        plain, compiled = run.run(ENGINE, FEW, timeout=400), self.compiled
        for result in (plain, compiled):
            self.assertEqual(result.status, 0, result.errors)
        for rank in range(2):
            ours, theirs = (np.array(result.losses(rank)) for result in (plain, compiled))
            apart = np.abs(theirs / ours - 1).max()
            print(f"{ENGINE}, rank {rank}: losses apart by {apart:.1e}")
            self.assertLess(apart, LOSS_TOLERANCE)
        for name, ours in plain.parameters.items():
            np.testing.assert_allclose(compiled.parameters[name], ours, rtol=1e-3, atol=1e-4, err_msg=name)

    def test_compilation_is_no_part_of_a_step(self):
        result = self.compiled
        if "SCALELAB_LONG_TESTS" in os.environ:  # also without the evaluation, which compiles the model too
            result = run.run(ENGINE, {**FEW, "evaluate": False, "compile": True}, timeout=400)
        self.assertEqual(result.status, 0, result.errors)
        steps = [step["metrics"]["step/total_s"] for step in result.of(0, "step")]
        print(f"{ENGINE}: first step {steps[0]:.3f} s, median {np.median(steps):.3f} s")
        # The first step must not include the compilation, which takes many seconds. A step takes a fraction of a second.
        self.assertLess(steps[0], np.median(steps) + 3)


@unittest.skipUnless(ENGINE == "pytorch/ddp", "the others need a newer PyTorch")
class WithoutACompiler(unittest.TestCase):
    def test_a_pytorch_without_a_compiler_is_an_error(self):
        result = run.run(ENGINE, {**FEW, "compile": True})
        self.assertNotEqual(result.status, 0)
        last = result.events[0][-1]
        self.assertRegex(last["message"], "^compile needs torch 2.1 or later, this is 1.13")
        self.assertEqual(last["kind"], "configuration")
