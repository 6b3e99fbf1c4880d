"""Checks on two ranks that PyTorch's strategies work: PowerSGD sends fewer bytes, and local SGD averages parameters periodically.

If the test is skipped, it prints the reason and exits with status 77.
"""
import functools
import unittest

import numpy as np
import run


@functools.cache
def plain():
    """Returns the result of a run without a strategy. Two tests compare with it."""
    return run.run("pytorch/ddp", {"learning_rate": 0.01})


class Strategies(unittest.TestCase):
    def finish(self, result, rank):
        self.assertEqual(result.status, 0, result.errors)
        return result.of(rank, "finish")[0]

    def test_powersgd_sends_less_and_learns(self):
        run.python_of("pytorch/powersgd")  # skips
        low = run.run("pytorch/powersgd", {"learning_rate": 0.01, "powersgd_rank": 2})
        self.assertEqual(low.status, 0, low.errors)
        bytes_of = [r.of(0, "step")[5]["metrics"]["comm/bytes"] for r in (plain(), low)]
        self.assertLess(bytes_of[1], bytes_of[0] / 4)
        losses = low.losses(0)
        self.assertLess(losses[-1], losses[0])
        self.assertEqual(losses[:2], plain().losses(0)[:2], "the first steps are exact")
        self.assertNotEqual(losses[-1], plain().losses(0)[-1])
        self.assertEqual(self.finish(low, 0)["parameter_hash"], self.finish(low, 1)["parameter_hash"])

    def test_local_sgd_ends_with_equal_parameters(self):
        run.python_of("pytorch/local-sgd")  # skips
        local = run.run("pytorch/local-sgd", {"local_steps": 4, "learning_rate": 0.01})
        self.assertEqual(self.finish(local, 0)["parameter_hash"], self.finish(local, 1)["parameter_hash"])
        self.assertNotEqual(self.finish(local, 0)["parameter_hash"], self.finish(plain(), 0)["parameter_hash"])

    def test_pipelines_with_gpipe_and_two_groups_agree_with_the_native_ones(self):
        run.python_of("pytorch/pipeline")  # skips
        spec = {"pipeline_stages": 2, "pipeline_schedule": "gpipe", "accumulation_steps": 2, "max_steps": "5"}
        for ranks in (1, 4):  # one rank is the baseline
            native, ours = (run.run(engine, spec, ranks) for engine in ("native/pipeline", "pytorch/pipeline"))
            self.assertEqual((native.status, ours.status), (0, 0), native.errors + ours.errors)
            for rank in range(ranks):
                np.testing.assert_allclose(ours.losses(rank), native.losses(rank), rtol=1e-4)
            hashes = {self.finish(ours, rank)["parameter_hash"] for rank in range(ranks)}
            self.assertEqual(len(hashes), 1, "all ranks get the parameters of all stages")
        for rank in range(4):
            metrics, step = self.finish(ours, rank)["metrics"], ours.of(rank, "step")[3]["metrics"]
            self.assertAlmostEqual(metrics["run/pipeline_bubble_ideal"], 1 / 3)
            self.assertTrue(0 < metrics["run/pipeline_bubble"] < 1)
            parts = sum(step[f"step/{part}_s"] for part in ("data", "forward", "backward", "comm_exposed", "optimizer"))
            self.assertLessEqual(parts, step["step/total_s"] * 1.01)
            self.assertGreater(parts, step["step/total_s"] * 0.5)


if __name__ == "__main__":
    run.main("__main__")
