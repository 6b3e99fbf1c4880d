"""Interrupts runs of an engine and continues them from their checkpoints: `engine_test.py ENGINE checkpoints`."""
import glob
import os
import signal
import tempfile
import unittest

import run

ENGINE = run.ENGINE
# With three ranks, the order in which gradients are added depends on the framework's buckets.
RANKS = 3 if ENGINE == "pytorch/ddp" else 2
# Processes of the run; one process may have several replicas.
PROCESSES = 1 if run.ENGINES[ENGINE].one_process else RANKS
# The rank that receives the signals, and whose file is damaged. It is not rank 0 of mxnet/kvstore, which also runs
# the processes of the parameter server.
CHOSEN = 0 if PROCESSES == 1 or ENGINE == "mxnet/kvstore" else 1
STEPS, EVERY = 8, 3
FIELDS = {
    "model": "resnet8", "dataset": "synthetic", "image_size": 16, "train_samples": "60", "global_batch": 12, "epochs": 2,
    "learning_rate": 0.05, "lr_schedule": "cosine", "max_steps": str(STEPS), "checkpoint_every_steps": EVERY, "warmup_steps": 1,
    "seed": "-7000000000",  # Keras accepts no such seed
    # With these parameters, an engine's strategy (compression, local steps, parts) is in use before the first
    # checkpoint is written.
    **({"powersgd_rank": 1} if ENGINE == "pytorch/powersgd" else {}),
    **({"local_steps": 4, "local_start_step": 1} if ENGINE == "pytorch/local-sgd" else {}),
    **({"accumulation_steps": 2} if ENGINE == "pytorch/pipeline" else {}),
}  # fmt: skip

# Whether the test also sends SIGKILL, which ends the processes of all frameworks in the same way.
KILLED = ENGINE == "pytorch/ddp"


def losses(result, rank):
    return {event["step"]: event["metrics"]["train/loss"] for event in result.of(rank, "step")}


def damage(checkpoints):
    """Cuts the last byte off a file of the newest checkpoint."""
    newest = sorted(glob.glob(os.path.join(checkpoints, "step-*")))[-1]
    path = sorted(glob.glob(os.path.join(newest, f"rank-{CHOSEN}.*")))[-1]
    os.truncate(path, os.path.getsize(path) - 1)


class Checkpoints(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        run.python_of(ENGINE)  # skips
        top = tempfile.TemporaryDirectory(prefix="scalelab-checkpoints-")
        cls.addClassCleanup(top.cleanup)
        cls.whole = cls.attempt(os.path.join(top.name, "checkpoints-of-whole"))
        if cls.whole.status != 0:
            raise AssertionError(cls.whole.errors)
        cls.checkpoints = os.path.join(top.name, "checkpoints")
        cls.killed = [cls.attempt(cls.checkpoints, "SIGKILL")] if KILLED else []
        cls.signalled = cls.attempt(cls.checkpoints, "SIGUSR1")
        damage(cls.checkpoints)
        cls.other = cls.attempt(cls.checkpoints, ranks=RANKS + 1) if PROCESSES == 1 else None
        cls.last = cls.attempt(cls.checkpoints, expensive_block=-1)
        cls.parts = [*cls.killed, cls.signalled, cls.last]

    @staticmethod
    def attempt(checkpoints, interrupt=None, expensive_block=0, ranks=RANKS):
        """Runs an attempt. `interrupt` is the signal that rank CHOSEN receives in step 4."""
        variables = {"SCALELAB_CHECKPOINT_DIR": checkpoints, "EXPENSIVE_BLOCK": str(expensive_block)}
        if interrupt:
            variables["INTERRUPT"] = f"{CHOSEN} 4 {interrupt}"
        return run.run(ENGINE, FIELDS, ranks, timeout=500, wrapper="interrupted", variables=variables)

    def test_the_run_ends_with_the_bits_of_one_that_was_not_interrupted(self):
        self.assertEqual(self.whole.status, 0, self.whole.errors)
        self.assertEqual(self.last.status, 0, self.last.errors)
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

    @unittest.skipIf(PROCESSES == 1 or ENGINE == "pytorch/pipeline" or "mxnet" in ENGINE, "ranks report one loss, or no dropout")
    def test_ranks_draw_different_random_numbers(self):
        first = {losses(self.whole, rank)[0] for rank in range(RANKS)}
        self.assertEqual(len(first), RANKS, "ranks train on the same images in the first step")

    def test_epochs_have_the_losses_of_the_other_run(self):
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
        # mpirun exits with the status that a shell reports for a signal.
        statuses = [128 + signal.SIGUSR1] if run.ENGINES[ENGINE].mpi else [-signal.SIGUSR1] * PROCESSES
        self.assertEqual(self.signalled.statuses, statuses, self.signalled.errors)
        for killed in self.killed:
            self.assertEqual(killed.statuses[CHOSEN], -signal.SIGKILL)

    def test_a_damaged_checkpoint_is_passed_over(self):
        expected = rf"checkpoint after step 5 is damaged, the one before it is used: .*rank-{CHOSEN}\.\S* has"
        self.assertRegex(self.last.errors, expected)

    def test_lost_time_is_reported_and_checkpoints_are_removed(self):
        self.assertEqual(self.whole.of(0, "finish")[0]["metrics"]["run/lost_seconds"], 0)
        metrics = self.last.of(0, "finish")[0]["metrics"]
        self.assertGreater(metrics["run/lost_seconds"], 0)
        self.assertGreater(metrics["run/seconds"], metrics["run/lost_seconds"])
        self.assertGreater(metrics["run/checkpoint_seconds"], 0)
        self.assertEqual(metrics["run/steps"], STEPS)
        self.assertFalse(os.path.exists(self.checkpoints))

    @unittest.skipUnless(PROCESSES == 1, "each rank is a process; the store has a test of their number")
    def test_another_number_of_replicas_is_refused(self):
        self.assertEqual(self.other.statuses, [1])
        [error] = self.other.of(0, "error")
        self.assertRegex(error["message"], "was written with replicas 2, this run has 3: restore replicas, or remove the checkpoints")
