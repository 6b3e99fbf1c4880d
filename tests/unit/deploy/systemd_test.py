"""deploy/systemd: settings of the service that its workers inherit, and its account."""
import glob
import os
import re
import shutil
import subprocess
import tempfile
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
        for name in ("PrivateDevices", "PrivateTmp", "MemoryDenyWriteExecute", "RestrictNamespaces", "ProtectClock"):
            self.assertNotIn(name, self.settings)

    def test_systemd_waits_until_the_service_is_ready(self):
        self.assertEqual(self.settings["Type"], "notify")
        self.assertEqual(self.settings["NotifyAccess"], "main")
        self.assertIn("AF_UNIX", self.settings["RestrictAddressFamilies"].split())

    def test_a_long_migration_does_not_end_the_start(self):
        self.assertEqual(self.settings["TimeoutStartSec"], "infinity")

    def test_the_account_may_have_any_primary_group(self):
        for unit in ("scalelabd.service", "scalelabd-backup.service"):
            self.assertEqual(settings(unit)["User"], "scalelab")
            self.assertNotIn("Group", settings(unit))


class Agent(unittest.TestCase):
    def test_its_exit_status_after_sigterm_is_no_failure(self):
        self.assertEqual(settings("scalelab-agent.service")["SuccessExitStatus"], "143")


@unittest.skipUnless(shutil.which("systemd-analyze"), "systemd-analyze (Debian package systemd) is not installed")
class Verify(unittest.TestCase):
    def complaints(self, change=lambda text: text):
        """Returns what `systemd-analyze verify` prints about the units, after `change` of the text of each. The programs of the
        units are those of the packages, which this machine need not have, so copies of the units start /bin/true."""
        printed = []
        with tempfile.TemporaryDirectory() as top:
            for path in glob.glob(os.path.join(UNITS, "*.service")) + glob.glob(os.path.join(UNITS, "*.timer")):
                with open(path, encoding="utf-8") as file:
                    text = re.sub(r"/usr/(bin|lib/scalelab)/(scalelabd|scalelab|remove-old-backups)\b", "/bin/true", file.read())
                with open(os.path.join(top, os.path.basename(path)), "w", encoding="utf-8") as file:
                    file.write(change(text))
            os.mkdir(os.path.join(top, "runtime"))
            environment = {**os.environ, "XDG_RUNTIME_DIR": os.path.join(top, "runtime")}
            names = sorted(name for name in os.listdir(top) if "." in name)
            self.assertEqual(len(names), 4)
            for name in names:
                # The agent is a unit of the users' own systemd.
                user = ["--user"] if name == "scalelab-agent.service" else []
                result = subprocess.run(
                    ["systemd-analyze", *user, "verify", "--man=no", os.path.join(top, name)],
                    env=environment, capture_output=True, text=True, timeout=60)
                printed += (result.stdout + result.stderr).splitlines()
                if result.returncode != 0:
                    printed.append(f"{name}: exit status {result.returncode}")
        return printed

    def test_systemd_accepts_all_units(self):
        self.assertEqual(self.complaints(), [])

    def test_an_unknown_setting_is_found(self):
        complaints = self.complaints(lambda text: text.replace("NoNewPrivileges=", "NoNewPrivilege="))
        for unit in ("scalelabd.service", "scalelabd-backup.service", "scalelab-agent.service"):
            self.assertTrue(any(unit in line and "NoNewPrivilege" in line for line in complaints), complaints)


if __name__ == "__main__":
    unittest.main()
