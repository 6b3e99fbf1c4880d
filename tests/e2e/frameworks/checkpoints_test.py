"""Interrupts runs of an engine and continues them from their checkpoints: `checkpoints_test.py ENGINE`. Exit status 77: skipped."""
import glob
import os
import signal
import sys
import tempfile
import unittest

import run

ENGINE = sys.argv.pop() if len(sys.argv) > 1 else "pytorch/ddp"
# With three ranks, the order in which gradients are added depends on the framework's buckets.
RANKS = 3 if ENGINE == "pytorch/ddp" else 2
STEPS, EVERY = 8, 3
FIELDS = {
    "model": "resnet20", "dataset": "synthetic", "image_size": 16, "train_samples": "60", "global_batch": 12, "epochs": 2,
    "learning_rate": 0.05, "max_steps": str(STEPS), "checkpoint_every_steps": EVERY, "warmup_steps": 1,
    # What makes an engine's strategy begin before the first checkpoint.
    **({"powersgd_rank": 1} if ENGINE == "pytorch/powersgd" else {}),
    **({"local_steps": 4, "local_start_step": 1} if ENGINE == "pytorch/local-sgd" else {}),
}  # fmt: skip

# These frameworks compile for many seconds in each process, and SIGKILL ends all alike.
KILLED = ENGINE not in ("keras/tensorflow", "keras/jax")


def losses(result, rank):
    return {event["step"]: event["metrics"]["train/loss"] for event in result.of(rank, "step")}


def damage(checkpoints):
    """Cuts the last byte off a file of the newest checkpoint."""
    newest = sorted(glob.glob(os.path.join(checkpoints, "step-*")))[-1]
    path = sorted(glob.glob(os.path.join(newest, "rank-1*")))[-1]
    os.truncate(path, os.path.getsize(path) - 1)


class Checkpoints(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        run.python_of(ENGINE)  # skips
        top = tempfile.TemporaryDirectory(prefix="scalelab-checkpoints-")
        cls.addClassCleanup(top.cleanup)
        cls.whole = cls.attempt(os.path.join(top.name, "checkpoints-of-whole"))
        cls.checkpoints = os.path.join(top.name, "checkpoints")
        cls.killed = [cls.attempt(cls.checkpoints, "SIGKILL")] if KILLED else []
        cls.signalled = cls.attempt(cls.checkpoints, "SIGUSR1")
        damage(cls.checkpoints)
        cls.last = cls.attempt(cls.checkpoints)
        cls.parts = [*cls.killed, cls.signalled, cls.last]

    @staticmethod
    def attempt(checkpoints, interrupt=None):
        """Runs an attempt. `interrupt`: the signal that rank 1 gets in step 4."""
        variables = {"SCALELAB_CHECKPOINT_DIR": checkpoints, **({"INTERRUPT": f"1 4 {interrupt}"} if interrupt else {})}
        return run.run(ENGINE, FIELDS, RANKS, timeout=500, wrapper="interrupted", variables=variables)

    def test_the_run_ends_with_the_bits_of_one_that_was_not_interrupted(self):
        self.assertEqual(self.whole.statuses, [0] * RANKS, self.whole.errors)
        self.assertEqual(self.last.statuses, [0] * RANKS, self.last.errors)
        self.assertEqual(set(self.last.parameters), set(self.whole.parameters))
        for name, value in self.whole.parameters.items():
            self.assertEqual(self.last.parameters[name].tobytes(), value.tobytes(), name)
        hashes = [r.of(0, "finish")[0]["parameter_hash"] for r in (self.whole, self.last)]
        self.assertEqual(hashes[0], hashes[1])

    def test_steps_have_the_losses_of_the_other_run_and_none_is_doubled(self):
        for rank in range(RANKS):
            whole = losses(self.whole, rank)
            self.assertEqual(list(whole), list(range(STEPS)))
            for killed in self.killed:
                reported = list(losses(killed, rank))
                self.assertEqual(reported[:EVERY], list(range(EVERY)), "what a checkpoint contains is reported before it")
            self.assertEqual(list(losses(self.signalled, rank)), list(range(EVERY if KILLED else 0, 5)))
            self.assertEqual(list(losses(self.last, rank)), list(range(EVERY, STEPS)))
            for part in self.parts:
                found = losses(part, rank)
                self.assertEqual(found, {step: whole[step] for step in found})
        epochs = [e for part in self.parts for e in part.of(0, "epoch")]
        sums = {e["epoch"]: e["metrics"]["epoch/train_loss"] for e in epochs}
        self.assertEqual(sums, {e["epoch"]: e["metrics"]["epoch/train_loss"] for e in self.whole.of(0, "epoch")})

    def test_attempts_report_where_they_begin_and_what_they_have_written(self):
        self.assertNotIn("resumed_step", self.whole.of(0, "start")[0])
        self.assertEqual([e["step"] for e in self.whole.of(0, "checkpoint")], [3, 6])
        for killed in self.killed:
            self.assertEqual([e["step"] for e in killed.of(0, "checkpoint")], [3])
        for attempt in self.parts[1:]:
            self.assertEqual([attempt.of(rank, "start")[0]["resumed_step"] for rank in range(RANKS)], [EVERY] * RANKS)
        self.assertEqual([e["step"] for e in self.signalled.of(0, "checkpoint")], [5] if KILLED else [3, 5])
        self.assertEqual([e["step"] for e in self.last.of(0, "checkpoint")], [6])
        self.assertGreater(self.last.of(0, "checkpoint")[0]["metrics"]["checkpoint/bytes"], 1000)

    def test_a_signal_to_one_rank_ends_all_ranks_after_a_checkpoint(self):
        self.assertEqual(self.signalled.statuses, [-signal.SIGUSR1] * RANKS, self.signalled.errors)
        for killed in self.killed:
            self.assertEqual(killed.statuses[1], -signal.SIGKILL)

    def test_a_damaged_checkpoint_is_passed_over(self):
        self.assertRegex(self.last.errors, r"checkpoint after step 5 is damaged, the one before it is used: .*rank-1\S* has")

    def test_lost_time_is_reported_and_checkpoints_are_removed(self):
        finish = [r.of(0, "finish")[0]["metrics"] for r in (self.whole, self.last)]
        self.assertEqual(finish[0]["run/lost_seconds"], 0)
        self.assertGreater(finish[1]["run/lost_seconds"], 0)
        self.assertGreater(finish[1]["run/seconds"], finish[1]["run/lost_seconds"])
        self.assertGreater(finish[1]["run/checkpoint_seconds"], 0)
        self.assertEqual([m["run/steps"] for m in finish], [STEPS, STEPS])
        self.assertFalse(os.path.exists(self.checkpoints))


if __name__ == "__main__":
    unittest.main(verbosity=2)
