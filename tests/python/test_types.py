"""The types of the Python client, checked by mypy with the settings of client/python/pyproject.toml."""
from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import scalelab
from fixture import SOURCE

MYPY = shutil.which("mypy")


@unittest.skipUnless(MYPY, "mypy is missing; deploy/setup --tests installs it")
class TypesTest(unittest.TestCase):
    def test_the_client_is_typed(self) -> None:
        # The generated messages are only in the wheel.
        site = pathlib.Path(scalelab.__file__).resolve().parents[1]
        with tempfile.TemporaryDirectory() as cache:
            done = subprocess.run([MYPY, "--cache-dir", cache, "--config-file", SOURCE / "client" / "python" / "pyproject.toml",
                                   "--package", "scalelab"], env={**os.environ, "MYPYPATH": str(site)}, cwd=cache,
                                  capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
