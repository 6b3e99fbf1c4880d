"""deploy/systemd: settings of the service that its workers inherit."""
import os
import unittest

UNIT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "deploy", "systemd", "scalelabd.service")


class Service(unittest.TestCase):
    def setUp(self):
        with open(UNIT, encoding="utf-8") as file:
            self.settings = dict(line.rstrip().split("=", 1) for line in file if "=" in line and not line.startswith("#"))

    def test_a_rank_without_memory_does_not_stop_the_service(self):
        self.assertEqual(self.settings["OOMPolicy"], "continue")

    def test_workers_may_use_gpus_containers_and_compilers(self):
        for name in ("PrivateDevices", "PrivateTmp", "MemoryDenyWriteExecute", "RestrictNamespaces"):
            self.assertNotIn(name, self.settings)


if __name__ == "__main__":
    unittest.main()
