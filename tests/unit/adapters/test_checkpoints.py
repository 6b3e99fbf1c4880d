import contextlib
import errno
import io
import json
import os
import signal
import threading
import unittest
from unittest import mock

import fixture
from scalelab import checkpoint_store, checkpoints, durable, stop_signal
from scalelab.errors import RunError
from scalelab.spec import Spec

RECIPE = {"engine": "toy/engine", "model": "resnet20"}


class Ranks:
    """Computes sums over ranks, which are threads."""

    def __init__(self, ranks):
        self._barrier = threading.Barrier(ranks)
        self._numbers = [None] * ranks

    def sums(self, rank):
        def add(numbers):
            self._numbers[rank] = numbers
            self._barrier.wait(10)
            result = [sum(column) for column in zip(*self._numbers)]
            self._barrier.wait(10)
            return result

        return add


class StoreTest(fixture.InDirectory):
    def on_ranks(self, ranks, work, recipe=RECIPE):
        """Calls `work`(store, rank) for every rank. Returns the results or exceptions."""
        shared, results = Ranks(ranks), [None] * ranks

        def one(rank):
            store = checkpoint_store.Store(self.path("checkpoints"), 2, recipe, rank, ranks, shared.sums(rank))
            try:
                results[rank] = work(store, rank)
            except Exception as e:  # pylint: disable=broad-except
                results[rank] = e

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        return results

    @staticmethod
    def writer(step, rank):
        def write(directory):
            names = [f"rank-{rank}.bin"] + (["shared.bin"] if rank == 0 else [])
            for name in names:
                with durable.replace(os.path.join(directory, name)) as file:
                    file.write(f"{name} of step {step}".encode())
            return names

        return write

    def save(self, *steps, ranks=1):
        for step in steps:
            sizes = self.on_ranks(ranks, lambda s, rank, step=step: s.save(step, self.writer(step, rank), {"rank": rank, "step": step}))
            self.assertEqual(len(set(sizes)), 1)
            self.assertGreater(sizes[0], 20)

    def newest(self, ranks=1, recipe=RECIPE):
        """Returns the checkpoint that each rank finds, and standard error."""
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            found = self.on_ranks(ranks, lambda store, _: store.load_newest(), recipe)
        return found, errors.getvalue()

    def files(self, step):
        directory = self.path(f"checkpoints/step-{step:012}")
        return [os.path.join(directory, name) for name in sorted(os.listdir(directory))]

    def test_every_rank_finds_what_it_has_written(self):
        self.assertEqual(self.newest(2), ([None, None], ""))
        self.save(5, 70_000_000_000, ranks=2)
        for rank, (step, directory, loop) in enumerate(self.newest(2)[0]):
            self.assertEqual((step, loop), (70_000_000_000, {"rank": rank, "step": step}))
            with open(os.path.join(directory, f"rank-{rank}.bin"), encoding="utf-8") as file:
                self.assertEqual(file.read(), f"rank-{rank}.bin of step {step}")

    def test_the_newest_two_are_kept(self):
        self.save(1, 2, 3, 4)
        self.assertEqual(sorted(os.listdir(self.path("checkpoints"))), ["step-000000000003", "step-000000000004"])

    def test_the_first_checkpoint_syncs_all_directories_above_it(self):
        synced = []
        with mock.patch.object(durable, "sync_directory", synced.append):
            store = checkpoint_store.Store(self.path("checkpoints"), 2, RECIPE, 0, 1, lambda values: values)
            store.save(1, self.writer(1, 0), {})
            first = len(synced)
            store.save(2, self.writer(2, 0), {})
        directory = os.path.realpath(self.path("checkpoints"))
        device = os.stat(directory).st_dev
        while directory != "/" and os.stat(directory).st_dev == device:
            self.assertIn(directory, synced[:first])
            directory = os.path.dirname(directory)
        # Each of the four files of a checkpoint syncs its own directory.
        self.assertEqual(sorted(synced[first:]), [self.path("checkpoints")] + 4 * [self.path("checkpoints/step-000000000002")])

    def test_a_file_that_is_cut_off_or_changed_anywhere_is_noticed(self):
        self.save(3, 4, ranks=2)
        places = 0
        for path in self.files(4):
            with open(path, "rb") as file:
                whole = file.read()
            for at in range(0, len(whole), 7):
                for torn in (whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]):
                    with open(path, "wb") as file:
                        file.write(torn)
                    found, errors = self.newest(2)
                    self.assertEqual([step for step, *_ in found], [3, 3], (path, at))
                    self.assertIn("checkpoint after step 4 is damaged, the one before it is used: ", errors)
                    with open(path.replace("step-", "damaged-step-"), "wb") as file:
                        file.write(whole)
                    os.rename(self.path("checkpoints/damaged-step-000000000004"), self.path("checkpoints/step-000000000004"))
                    places += 1
        self.assertGreater(places, 100)
        self.assertEqual([step for step, *_ in self.newest(2)[0]], [4, 4], "whole again")

    def test_a_checkpoint_without_a_manifest_is_not_complete_and_is_removed(self):
        self.save(1, 2)
        os.remove(self.path("checkpoints/step-000000000002/manifest.json"))
        self.assertEqual(self.newest()[0][0][0], 1)
        self.save(3)
        self.assertEqual(sorted(os.listdir(self.path("checkpoints"))), ["step-000000000001", "step-000000000003"])

    def test_a_file_system_that_fails_is_an_error_and_no_damage(self):
        self.save(1, ranks=2)
        sum_of_file, stat = durable.sum_of_file, os.stat

        def unreadable(path):
            if path.endswith("rank-1.bin"):
                raise OSError(errno.EIO, "Input/output error", path)
            return sum_of_file(path)

        with mock.patch.object(durable, "sum_of_file", unreadable):
            found, errors = self.newest(2)
        self.assertEqual((found[0][0], errors), (1, ""))
        self.assertRegex(str(found[1]), "cannot read .*/rank-1.bin: Input/output error; start again when its file system works")
        with mock.patch.object(os, "listdir", side_effect=PermissionError(errno.EACCES, "Permission denied")):
            (error,), _ = self.newest()
        self.assertRegex(str(error), "cannot list .*/checkpoints: Permission denied; start again when its file system works")

        def stale(path, *arguments, **options):
            if str(path).endswith("step-000000000001/manifest.json"):
                raise OSError(errno.ESTALE, "Stale file handle", path)
            return stat(path, *arguments, **options)

        with mock.patch.object(os, "stat", stale):
            self.save(2, ranks=2)
        self.assertEqual(sorted(os.listdir(self.path("checkpoints"))), ["step-000000000001", "step-000000000002"])
        self.assertEqual([step for step, *_ in self.newest(2)[0]], [2, 2])

    def test_what_one_rank_cannot_write_is_no_checkpoint(self):
        self.save(1, ranks=2)

        def fails(store, rank):
            def write(directory):
                self.writer(2, rank)(directory)
                raise OSError("no space")

            return store.save(2, write if rank == 1 else self.writer(2, rank), {})

        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            self.assertEqual(self.on_ranks(2, fails), [None, None])
        self.assertEqual(errors.getvalue(), "no checkpoint after step 2: no space\n")
        self.assertEqual(os.listdir(self.path("checkpoints")), ["step-000000000001"], "the files of step 2 are removed")
        self.assertEqual([step for step, *_ in self.newest(2)[0]], [1, 1])

    def test_the_checkpoint_of_another_run_is_an_error(self):
        self.save(1)
        (error,), _ = self.newest(recipe={**RECIPE, "model": "resnet56"})
        self.assertIsInstance(error, RunError)
        self.assertRegex(str(error), 'was written with model "resnet20", this run has "resnet56": restore model, or remove')
        found, _ = self.newest(2)
        self.assertRegex(str(found[1]), "was written by 1 ranks, and engine toy/engine needs as many to continue, not 2: start as many")
        self.assertEqual(self.newest()[0][0][0], 1, "it is still there")

    def test_all_are_removed_after_the_run(self):
        self.save(1, ranks=2)
        self.on_ranks(2, lambda store, _: store.remove_all())
        self.assertFalse(os.path.exists(self.path("checkpoints")))


class CheckpointsTest(fixture.InDirectory):
    def test_seconds_of_attempts_end_with_their_last_events(self):
        events = self.write("events", '{"time":10}\n{"time":14.5,"event":"step"}\n{"time":99')
        lines = [{"begin": 10, "events": events}, {"begin": 20, "events": self.path("none")}, {"begin": 12, "events": events}]
        path = self.write("attempts.jsonl", "".join(json.dumps(line) + "\n" for line in lines) + "half")
        self.assertEqual(checkpoints.seconds_of_attempts(path), 4.5 + 2.5)
        self.assertEqual(checkpoints.seconds_of_attempts(self.path("none")), 0)

    def test_a_directory_is_needed(self):
        os.environ.pop("SCALELAB_CHECKPOINT_DIR", None)
        with self.assertRaisesRegex(RunError, "checkpoints need a directory: set SCALELAB_CHECKPOINT_DIR, or remove"):
            checkpoints.Checkpoints(Spec(checkpoint_every_minutes=1.0), 0, 1, None)
        self.assertFalse(checkpoints.Checkpoints(Spec(), 0, 1, None).due(1))

    def test_ranks_agree_on_what_is_due(self):
        for number in stop_signal.SIGNALS:
            self.addCleanup(signal.signal, number, signal.getsignal(number))
        os.environ["SCALELAB_CHECKPOINT_DIR"] = self.path("checkpoints")
        self.addCleanup(os.environ.pop, "SCALELAB_CHECKPOINT_DIR")
        calls = []
        one = checkpoints.Checkpoints(Spec(checkpoint_every_steps=5, checkpoint_every_minutes=1e-9), 0, 2, None)
        one.load_newest("toy/engine", lambda numbers: calls.append(numbers) or list(numbers), lambda: None)
        calls.clear()
        self.assertTrue(one.due(1), "the time has passed")
        self.assertEqual(len(calls), 1)
        hourly = checkpoints.Checkpoints(Spec(checkpoint_every_steps=5, checkpoint_every_minutes=60.0), 0, 2, None)
        hourly.load_newest("toy/engine", lambda numbers: calls.append(numbers) or list(numbers), lambda: None)
        calls.clear()
        self.assertEqual([hourly.due(steps) for steps in range(1, 11)], [steps % 5 == 0 for steps in range(1, 11)])
        self.assertLess(len(calls), 5, "ranks agree a few times in a second, not after every step")

    def test_a_run_starts_if_its_attempt_cannot_be_recorded(self):
        for number in stop_signal.SIGNALS:
            self.addCleanup(signal.signal, number, signal.getsignal(number))
        os.environ["SCALELAB_CHECKPOINT_DIR"] = self.dir
        os.mkdir(self.path("attempts.jsonl"))  # like a full disk, which tests cannot make
        one = checkpoints.Checkpoints(Spec(checkpoint_every_steps=5), 0, 1, None)
        with contextlib.redirect_stderr(io.StringIO()) as errors:
            self.assertGreaterEqual(one.begin(0.0), 0.0)
        self.assertIn("cannot write " + self.path("attempts.jsonl"), errors.getvalue())


if __name__ == "__main__":
    unittest.main()
