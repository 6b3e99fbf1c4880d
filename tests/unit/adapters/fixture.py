"""Helpers of the tests of the adapters' modules."""
import os
import shutil
import sys
import tempfile
import unittest

ADAPTERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "worker", "adapters")
sys.path.insert(0, ADAPTERS)


class InDirectory(unittest.TestCase):
    """Each test has its own directory, self.dir. Changes of the environment are undone after the test."""

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="scalelab-adapters-")
        self.addCleanup(shutil.rmtree, self.dir)
        before = dict(os.environ)
        self.addCleanup(lambda: (os.environ.clear(), os.environ.update(before)))

    def path(self, name):
        return os.path.join(self.dir, name)

    def write(self, name, text, mode=0o644):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(self.path(name), mode)
        return self.path(name)
