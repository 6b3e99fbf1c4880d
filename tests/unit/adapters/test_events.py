import errno
import json
import os
import unittest
from unittest import mock

import fixture
from scalelab import events
from scalelab.errors import RunError, describe


class EventsTest(fixture.InDirectory):
    def lines(self, name="events-0.jsonl"):
        with open(self.path(name), encoding="utf-8") as file:
            text = file.read()
        self.assertTrue(text == "" or text.endswith("\n"))
        return [json.loads(line) for line in text.splitlines()]

    def test_lines_have_the_fields_of_the_protocol(self):
        log = events.Events(self.path("events-0.jsonl"))
        with mock.patch("time.time", return_value=1795000000.25):
            log.start("pytorch", "torch 1.13.1", 2, 1, 32, "Some CPU")
            log.step(0, 12, {"step/total_s": 0.031, "train/loss": 1.875})
            log.epoch(0, {"eval/accuracy": 0.5})
            log.finish({"run/throughput": 812.5, "run/accuracy": None}, "9f86d081884c7d65")
            log.error("out of memory", "out_of_memory")
        time = {"time": 1795000000.25}
        self.assertEqual(
            self.lines(),
            [
                {**time, "event": "start", "framework": "pytorch", "version": "torch 1.13.1", "world_size": 2, "rank": 1,
                 "total_steps": 32, "device": "Some CPU"},
                {**time, "event": "step", "epoch": 0, "step": 12, "metrics": {"step/total_s": 0.031, "train/loss": 1.875}},
                {**time, "event": "epoch", "epoch": 0, "metrics": {"eval/accuracy": 0.5}},
                {**time, "event": "finish", "metrics": {"run/throughput": 812.5}, "parameter_hash": "9f86d081884c7d65"},
                {**time, "event": "error", "message": "out of memory", "kind": "out_of_memory"},
            ],
        )

    def test_what_is_not_finite_is_a_string(self):
        log = events.Events(self.path("events-0.jsonl"))
        log.epoch(0, {"a": float("nan"), "b": float("inf"), "c": -float("inf")})
        self.assertEqual(self.lines()[0]["metrics"], {"a": "NaN", "b": "Infinity", "c": "-Infinity"})

    def test_step_lines_wait_for_company_and_keep_their_order(self):
        now = [100.0]
        with mock.patch("time.monotonic", side_effect=lambda: now[0]):
            log = events.Events(self.path("events-0.jsonl"))
            log.step(0, 0, {})
            now[0] += 0.4
            log.step(0, 1, {})
            self.assertEqual(self.lines(), [])
            now[0] += 0.1
            log.step(0, 2, {})
            self.assertEqual([line["step"] for line in self.lines()], [0, 1, 2])
            log.step(0, 3, {})
            log.epoch(0, {})
        self.assertEqual([line.get("step") for line in self.lines()], [0, 1, 2, 3, None])

    def test_the_last_event_reports_that_the_close_of_a_file_fails(self):
        log = events.Events(self.path("events-0.jsonl"))
        close = os.close

        def fail(descriptor):
            close(descriptor)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with mock.patch("os.close", fail), self.assertRaises(OSError) as caught:
            log.finish({}, "9f86d081884c7d65")
        self.assertEqual(caught.exception.errno, errno.ENOSPC)
        log.error("no space", "trainer_error")  # the event file is still open

    def test_events_before_a_checkpoint_are_synced(self):
        log = events.Events([self.path("events-0.jsonl"), self.path("events-1.jsonl")])
        log.step(0, 0, {})
        synced = []
        with mock.patch("os.fsync", lambda descriptor: synced.append((descriptor, os.fstat(descriptor).st_size))):
            log.sync()
        self.assertEqual(len(set(synced)), 2)
        self.assertTrue(all(size > 0 for _, size in synced), "steps are written first")
        for code in (errno.EINVAL, errno.ENOTSUP):
            with mock.patch("os.fsync", side_effect=OSError(code, os.strerror(code))):
                log.sync()
        with mock.patch("os.fsync", side_effect=OSError(errno.EIO, os.strerror(errno.EIO))), self.assertRaises(OSError):
            log.sync()

    def test_every_replica_has_its_file(self):
        log = events.Events([self.path("events-0.jsonl"), self.path("events-1.jsonl")])
        log.start("tensorflow", "2", 2, 0, 1, "Some GPU")
        log.step(0, 0, {"train/loss": 2})
        log.finish({}, "")
        for rank in range(2):
            lines = self.lines(f"events-{rank}.jsonl")
            self.assertEqual([line["event"] for line in lines], ["start", "step", "finish"])
            self.assertEqual(lines[0]["rank"], rank)

    def test_appends_and_says_which_file_cannot_be_opened(self):
        self.write("events-0.jsonl", '{"event":"old"}\n')
        events.Events(self.path("events-0.jsonl")).error("x" * 100_000, "other")
        self.assertEqual([line["event"] for line in self.lines()], ["old", "error"])
        self.assertEqual(len(self.lines()[1]["message"]), events.MESSAGE_LIMIT)
        with self.assertRaisesRegex(RunError, r"cannot open the event file .*/none/e .SCALELAB_EVENTS.: No such file"):
            events.Events(self.path("none/e"))


class DescribeTest(unittest.TestCase):
    def test_errors_become_one_line_and_a_kind(self):
        class OutOfMemoryError(RuntimeError):
            pass

        cases = [
            (RunError("no such file", "data"), "no such file", "data"),
            (MemoryError(), "out of host memory: try a smaller batch_per_rank", "out_of_memory"),
            (OutOfMemoryError("CUDA"), "OutOfMemoryError: CUDA", "out_of_memory"),
            (RuntimeError("[enforce] DefaultCPUAllocator: can't allocate memory: 9 bytes\nstack"),
             "RuntimeError: [enforce] DefaultCPUAllocator: can't allocate memory: 9 bytes", "out_of_memory"),
            (RuntimeError("[x.cc:81] Timed out waiting 5000ms for recv operation to complete"),
             "another rank is gone or late, see the output of all ranks: [x.cc:81] Timed out waiting 5000ms for recv operation to "
             "complete", "communication"),
            (KeyError(), "KeyError", "other"),
        ]
        for error, message, kind in cases:
            self.assertEqual(describe(error), (message, kind))


if __name__ == "__main__":
    unittest.main()
