"""deploy/systemd: settings of the service that its workers inherit, and its account."""
import os
import unittest

UNITS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "deploy", "systemd")


def settings(unit):
    with open(os.path.join(UNITS, unit), encoding="utf-8") as file:
        return dict(line.rstrip().split("=", 1) for line in file if "=" in line and not line.startswith("#"))


class Service(unittest.TestCase):
    def setUp(self):
        self.settings = settings("scalelabd.service")

    def test_a_rank_without_memory_does_not_stop_the_service(self):
        self.assertEqual(self.settings["OOMPolicy"], "continue")

    def test_workers_may_use_gpus_containers_and_compilers(self):
        for name in ("PrivateDevices", "PrivateTmp", "MemoryDenyWriteExecute", "RestrictNamespaces"):
            self.assertNotIn(name, self.settings)

    def test_the_account_may_have_any_primary_group(self):
        for unit in ("scalelabd.service", "scalelabd-backup.service"):
            self.assertEqual(settings(unit)["User"], "scalelab")
            self.assertNotIn("Group", settings(unit))


if __name__ == "__main__":
    unittest.main()
