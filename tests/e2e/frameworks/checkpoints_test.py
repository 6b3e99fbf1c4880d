"""Interrupts runs of an engine and continues them from their checkpoints: `checkpoints_test.py ENGINE`. Exit status 77: skipped."""
import json
import os
import signal
import subprocess
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
}  # fmt: skip
# What makes an engine's strategy begin before the first checkpoint.
MORE = {"pytorch/powersgd": {"powersgd_rank": 1}, "pytorch/local-sgd": {"local_steps": 4, "local_start_step": 1}}


# These frameworks compile for many seconds in each process, and SIGKILL ends all alike.
KILLED = ENGINE not in ("keras/tensorflow", "keras/jax")


def attempts():
    """Returns the attempts: a whole run, and one that is killed, then gets a signal, then finds its newest checkpoint damaged."""
    killed = {"killed": {"interrupt": {"rank": 1, "step": 4, "signal": "SIGKILL"}}}
    return {
        "whole": {},
        **(killed if KILLED else {}),
        "signalled": {"interrupt": {"rank": 1, "step": 4, "signal": "SIGUSR1"}},
        "last": {"damage": True},
    }


class Result:
    def __init__(self, directory):
        with open(os.path.join(directory, "status.json"), encoding="utf-8") as file:
            self.statuses = json.load(file)
        self.events = [run.events_of(os.path.join(directory, f"events-{rank}.jsonl")) for rank in range(RANKS)]
        self.errors = ""
        for rank in range(RANKS):
            with open(os.path.join(directory, f"errors-{rank}"), encoding="utf-8", errors="replace") as file:
                self.errors += file.read()
        saved = os.path.join(directory, "parameters.safetensors")
        self.parameters = run.recipe.read_safetensors(saved) if os.path.exists(saved) else {}

    def of(self, rank, event):
        return [e for e in self.events[rank] if e["event"] == event]

    def losses(self, rank):
        return {e["step"]: e["metrics"]["train/loss"] for e in self.of(rank, "step")}


class Checkpoints(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        python = run.python_of(ENGINE)  # skips
        cls.top = tempfile.TemporaryDirectory(prefix="scalelab-checkpoints-")
        cls.addClassCleanup(cls.top.cleanup)
        spec = {**run.fields(ENGINE, RANKS, FIELDS), **MORE.get(ENGINE, {})}
        path = os.path.join(cls.top.name, "spec.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(spec, file)
        plan = []
        for name, attempt in attempts().items():
            cls.checkpoints = os.path.join(cls.top.name, "checkpoints-of-whole" if name == "whole" else "checkpoints")
            variables = {"SCALELAB_SPEC": path, "SCALELAB_CHECKPOINT_DIR": cls.checkpoints, "SCALELAB_TRAINER": run.trainer()}
            plan.append({"directory": os.path.join(cls.top.name, name), "ranks": RANKS, "variables": variables, **attempt})
        plan_path = os.path.join(cls.top.name, "plan.json")
        with open(plan_path, "w", encoding="utf-8") as file:
            json.dump(plan, file)
        wrapper = os.path.join(os.path.dirname(os.path.abspath(__file__)), "attempts.py")
        script = os.path.join(run.ADAPTERS, run.ENGINES[ENGINE].script)
        subprocess.run([python, wrapper, script, plan_path], env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=500, check=True)
        results = [Result(attempt["directory"]) for attempt in plan]
        cls.whole, *cls.killed, cls.signalled, cls.last = results
        cls.parts = results[1:]

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
            whole = self.whole.losses(rank)
            self.assertEqual(list(whole), list(range(STEPS)))
            for killed in self.killed:
                reported = list(killed.losses(rank))
                self.assertEqual(reported[:EVERY], list(range(EVERY)), "what a checkpoint contains is reported before it")
            self.assertEqual(list(self.signalled.losses(rank)), list(range(EVERY if KILLED else 0, 5)))
            self.assertEqual(list(self.last.losses(rank)), list(range(EVERY, STEPS)))
            for part in self.parts:
                losses = part.losses(rank)
                self.assertEqual(losses, {step: whole[step] for step in losses})
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
