import errno
import multiprocessing
import socket
import threading
import unittest
from unittest import mock

import fixture
from scalelab import rendezvous
from scalelab.errors import RunError, describe


def _meet(directory, rank, ranks, timeout, answers):
    try:
        answers.put((rank, rendezvous.meet(directory, rank, ranks, timeout)))
    except RunError as e:
        answers.put((rank, describe(e)))


class RendezvousTest(fixture.InDirectory):
    def met(self, come, ranks, timeout):
        answers = multiprocessing.Queue()
        processes = [multiprocessing.Process(target=_meet, args=(self.dir, r, ranks, timeout, answers)) for r in come]
        for process in processes:
            process.start()
        result = dict(answers.get(timeout=30) for _ in processes)
        for process in processes:
            process.join()
        return result

    def test_ranks_agree_on_a_port_for_each(self):
        met = self.met((1, 0, 2), 3, 20)
        self.assertEqual(met[0], met[1])
        self.assertEqual(met[0], met[2])
        self.assertEqual(len(set(met[0])), 3)
        low, high = rendezvous._ephemeral_range()
        for place in met[0]:
            host, port = place.split(":")
            self.assertEqual(host, "127.0.0.1")
            self.assertFalse(low <= int(port) <= high)
            with socket.socket() as again:
                again.bind(("", int(port)))  # free for the framework

    def test_a_rank_that_does_not_come_is_named(self):
        message, kind = self.met((0, 2), 4, 0.2)[2]
        self.assertIn("rank 2 waited 0.2 s in vain for rank 1, 3 of 4 at the rendezvous", message)
        self.assertEqual(kind, "rendezvous")

    def test_a_port_that_somebody_has_is_passed_over(self):
        with socket.socket() as taken, rendezvous._bind_free_port() as free:
            port = free.getsockname()[1]
            free.close()
            taken.bind(("", port))
            with mock.patch("random.SystemRandom.sample", return_value=[port, port + 1]):
                with rendezvous._bind_free_port() as other:
                    self.assertEqual(other.getsockname()[1], port + 1)
            with mock.patch("random.SystemRandom.sample", return_value=[port]):
                with rendezvous._bind_free_port() as other:  # the kernel chooses this port
                    self.assertNotIn(other.getsockname()[1], (0, port))

    def test_a_node_whose_ephemeral_range_has_all_ports_has_a_port(self):
        with mock.patch.object(rendezvous, "_ephemeral_range", return_value=(1024, 65535)):
            with rendezvous._bind_free_port() as one, rendezvous._bind_free_port() as other:
                self.assertNotEqual(one.getsockname()[1], other.getsockname()[1])
            self.assertRegex(rendezvous.meet(self.dir, 0, 1, 1)[0], "^127.0.0.1:[1-9][0-9]*$")

    def test_a_node_without_a_free_port_is_an_error(self):
        with mock.patch.object(rendezvous.socket, "socket") as made:
            made.return_value.bind.side_effect = OSError(errno.EADDRINUSE, "Address already in use")
            with self.assertRaisesRegex(RunError, "no free port"):
                rendezvous._bind_free_port()

    def test_each_name_and_each_try_is_a_meeting_of_its_own(self):
        first = rendezvous.exchange(self.dir, "a", 0, 1, "x", 1)
        self.assertEqual((first, rendezvous.exchange(self.dir, "b", 0, 1, "y", 1)), (["x"], ["y"]))
        rendezvous.meet(self.dir, 0, 1, 1)
        self.assertEqual(len(rendezvous.meet(self.dir, 0, 1, 1, tries=1)), 1)

    def test_hosts_are_addresses_only_where_there_are_several_nodes(self):
        self.assertEqual(rendezvous.hosts([["a", "10.0.0.1"], ["a", "10.0.0.1"]]), ["127.0.0.1"] * 2)
        self.assertEqual(rendezvous.hosts([["a", "10.0.0.1"], ["b", "10.0.0.2"]]), ["10.0.0.1", "10.0.0.2"])

    def test_knows_what_frameworks_say_of_a_taken_port(self):
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            one.listen()
            with self.assertRaises(OSError) as caught:
                two.bind(one.getsockname())
        self.assertTrue(rendezvous.is_port_taken(caught.exception))
        self.assertTrue(rendezvous.is_port_taken(RuntimeError("EADDRINUSE: Address already in use")))
        self.assertFalse(rendezvous.is_port_taken(RuntimeError("timed out")))

    def test_a_late_rank_is_waited_for(self):
        answers = []
        late = threading.Timer(0.2, lambda: rendezvous.exchange(self.dir, "n", 1, 2, "late", 5))
        late.start()
        answers = rendezvous.exchange(self.dir, "n", 0, 2, "early", 5)
        late.join()
        self.assertEqual(answers, ["early", "late"])


if __name__ == "__main__":
    unittest.main()
