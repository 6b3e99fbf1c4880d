"""Checks how an engine reports failures: `engine_test.py ENGINE failures`."""
import os
import signal
import time
import unittest

import run

ENGINE = run.ENGINE
LONG = {"max_steps": "0", "epochs": 100}
START_S = 300  # from the start of the processes to the first step: the first import of TensorFlow on a busy machine takes minutes
END_S = 120  # from the failure to the end of the processes


# mpirun starts these ranks, and ends all of them when one of them ends. Therefore they are its own processes in tests that kill or
# stop a rank (fork=False).
LAUNCHED = run.ENGINES[ENGINE].mpi


def kill_second(_, processes):
    processes[1].kill()


def second(directory, processes):
    """Returns the process id of rank 1 once it has trained a step."""
    path = os.path.join(directory, "events-1.jsonl")
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                if '"event":"step"' in file.read():
                    return rank_of_launcher(directory) if LAUNCHED else processes[1].pid
        if any(process.poll() is not None for process in processes):
            with open(os.path.join(directory, "errors"), encoding="utf-8", errors="replace") as file:
                raise AssertionError("a rank ended before its first step:\n" + file.read())
        time.sleep(0.02)
    raise AssertionError(f"rank 1 trained no step in {START_S} s")


def rank_of_launcher(directory):
    wanted = {f"SCALELAB_ATTEMPT_DIR={directory}", "OMPI_COMM_WORLD_RANK=1"}
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", encoding="utf-8", errors="replace") as file:
                if wanted <= set(file.read().split("\0")):
                    return int(pid)
        except OSError:
            pass  # it has ended
    raise AssertionError("there is no rank 1")


def kill_second_in_training(directory, processes):
    os.kill(second(directory, processes), signal.SIGKILL)


def stop_second_in_training(directory, processes):
    pid = second(directory, processes)
    os.kill(pid, signal.SIGSTOP)
    try:
        processes[0].wait(END_S)
    finally:
        if not LAUNCHED:  # with mpirun, the launcher kills the rank
            os.kill(pid, signal.SIGKILL)


class Failures(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        run.python_of(ENGINE)  # skips

    def ends(self, spec, message, kind, engine=ENGINE, meddle=None, limit=START_S, fork=False):
        """Checks that a run of two ranks ends, and that its last event contains the reason.

        Returns the last event of rank 0. If both ranks fail, mpirun may kill rank 0 before it writes this event; then returns the last
        event of rank 1.
        """
        result = run.run(engine, {"comm_timeout_s": 20, **spec}, meddle=meddle, timeout=limit, fork=fork)
        self.assertNotEqual(result.status, 0)
        written = [events for events in result.events if events] if LAUNCHED else result.events[:1]
        self.assertTrue(written, result.errors)
        last = written[0][-1]
        self.assertEqual(last["event"], "error", result.errors)
        self.assertRegex(last["message"], message)
        self.assertNotIn("\n", last["message"])
        self.assertEqual(last["kind"], kind)

    @unittest.skipIf(LAUNCHED, "mpirun brings them together")
    def test_a_rank_that_never_comes_is_named(self):
        self.ends({"comm_timeout_s": 2}, "rank 0 waited 2 s in vain for rank 1 of 2", "rendezvous", meddle=kill_second)

    def test_a_rank_that_is_killed_ends_the_other(self):
        if LAUNCHED:  # mpirun ends this rank
            result = run.run(ENGINE, LONG, meddle=kill_second_in_training, timeout=END_S, fork=False)
            self.assertNotEqual(result.status, 0)
            self.assertNotIn("finish", [event["event"] for event in result.events[0]])
        else:
            self.ends(LONG, "another rank is gone or late", "communication", meddle=kill_second_in_training, limit=END_S)

    def test_a_rank_that_is_stopped_is_given_up_in_time(self):
        # A rank of MPI that waits uses a whole core, so use a shorter timeout for engines with MPI.
        spec = {**LONG, "comm_timeout_s": 10} if LAUNCHED else LONG
        self.ends(spec, "another rank is gone or late", "communication", meddle=stop_second_in_training)

    def test_what_is_asked_for_and_not_there_is_a_sentence(self):
        cases = [
            ({"data_dir": "/none"}, "/none", "data"),
            ({"model": "resnet7"}, "resnet7", "configuration"),
            ({"precision": "amp-fp16"}, 'precision "amp-fp16" needs a GPU', "configuration"),
            ({"backend": "smoke"}, 'backend.*"smoke"', "configuration"),
            ({"accumulation_steps": 2}, "does not have accumulation_steps", "configuration"),
            ({"global_batch": 4096}, "fewer than one global batch of 4096", "data"),
        ]
        for spec, message, kind in cases:
            with self.subTest(spec):
                events = run.alone(ENGINE, spec)
                self.assertEqual([event["event"] for event in events], ["error"])
                self.assertRegex(events[0]["message"], message)
                self.assertNotIn("\n", events[0]["message"])
                self.assertEqual(events[0]["kind"], kind)

    @unittest.skipIf(run.gpus_here(), "this machine has GPUs")
    def test_a_run_for_gpus_never_trains_on_a_cpu(self):
        has_none = ENGINE in ("mxnet/kvstore", "horovod/mxnet")
        message = "trains on CPUs" if has_none else "gpus_per_rank is 1, but .* sees 0 GPUs"
        self.ends({"gpus_per_rank": 1}, message, "configuration", fork=True)  # the ranks end by themselves

    @unittest.skipUnless(ENGINE == "pytorch/ddp", "this is a test of pytorch/dp, which uses the same environment as pytorch/ddp")
    def test_data_parallel_has_no_replicas_on_a_cpu(self):
        self.ends({}, "pytorch/dp needs a GPU: nn.DataParallel has no replicas on a CPU", "configuration", engine="pytorch/dp")
