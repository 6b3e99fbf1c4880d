import itertools
import os
import subprocess
import sys
import unittest
from unittest import mock

import fixture
from scalelab import deadline


class Ended(Exception):
    pass


class Clock:
    """A clock that advances only in `sleep`. `looks` has the lengths of the first calls; later calls take as long as they should."""

    def __init__(self, *looks):
        self.seconds = 0.0
        self._looks = iter(looks)

    def monotonic(self):
        return self.seconds

    def sleep(self, seconds):
        self.seconds += next(self._looks, seconds)


class DeadlineTest(unittest.TestCase):
    def end_of_a_wait(self, clock, seconds):
        """Returns when the wait for a step ends the process, in seconds after its begin."""
        with mock.patch.object(deadline, "time", clock), mock.patch.object(deadline, "fail", side_effect=Ended):
            limit = deadline.Deadline(seconds, processes=1)  # starts no thread
            with self.assertRaises(Ended), limit("a step"):
                limit._watch()
        return clock.seconds

    def test_a_wait_ends_after_its_timeout(self):
        self.assertEqual(self.end_of_a_wait(Clock(), 5), 5.5)

    def test_a_busy_processor_does_not_extend_a_wait(self):
        self.assertLess(self.end_of_a_wait(Clock(*itertools.repeat(1.9, 100)), 5), 5 + 1.9)

    def test_time_in_which_the_process_is_stopped_does_not_count(self):
        self.assertEqual(self.end_of_a_wait(Clock(0.5, 600, 0.5, 7200), 5), 600 + 7200 + 4.5)

    def test_the_process_ends_even_if_the_disk_is_full(self):
        program = (
            "import threading, time\n"
            "from scalelab import deadline\n"
            "threading.Thread(target=deadline.fail, args=('late',)).start()\n"
            "time.sleep(60)\n"  # the main thread waits for another rank
        )
        for full in ({"SCALELAB_EVENTS": "/dev/full"}, {"SCALELAB_EVENTS": ""}):
            with open("/dev/full", "w", encoding="utf-8") as errors:
                done = subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": fixture.ADAPTERS, **full},
                                      stdout=subprocess.PIPE, stderr=errors, timeout=30, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertEqual(b'"message":"late"' in done.stdout, full["SCALELAB_EVENTS"] == "")


if __name__ == "__main__":
    unittest.main()
