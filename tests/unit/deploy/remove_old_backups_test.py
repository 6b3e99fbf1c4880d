"""deploy/systemd/remove-old-backups: which files it removes."""
import os
import subprocess
import tempfile
import time
import unittest

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "deploy", "systemd", "remove-old-backups")


class RemoveOldBackups(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name

    def write(self, name, days):
        path = os.path.join(self.directory, name)
        with open(path, "w", encoding="utf-8"):
            pass
        written = time.time() - 86400 * days
        os.utime(path, (written, written))

    def remaining(self):
        subprocess.run([SCRIPT, self.directory], check=True)
        return sorted(os.listdir(self.directory))

    def test_incomplete_backups_are_removed_after_a_day(self):
        self.write("now.db.part", 0.9)
        self.write("crashed.db.part", 1.1)
        self.assertEqual(self.remaining(), ["now.db.part"])

    def test_complete_backups_are_removed_after_30_days(self):
        for day in range(12):
            self.write(f"new-{day:02}.db", day)
        self.write("29 days.db", 29)
        self.write("32 days.db", 32)
        self.write("notes.txt", 400)
        self.assertEqual(self.remaining(), ["29 days.db", *(f"new-{day:02}.db" for day in range(12)), "notes.txt"])

    def test_the_newest_ten_stay(self):
        for day in range(12):
            self.write(f"{day:02}.db", 100 + day)
        self.assertEqual(self.remaining(), [f"{day:02}.db" for day in range(10)])

    def test_an_empty_directory_stays_empty(self):
        self.assertEqual(self.remaining(), [])


if __name__ == "__main__":
    unittest.main()
