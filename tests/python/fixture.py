"""Helpers of the tests of the Python client: a private service with real runs, and the programs of this build."""
from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = pathlib.Path(os.environ.get("SCALELAB_PROGRAMS", SOURCE / "build" / "dev" / "bin"))
WITHIN = 60  # seconds for anything that a test waits for


class InDirectory(unittest.TestCase):
    """A test with a directory of its own, and an environment and a working directory that tests may change."""

    def setUp(self) -> None:
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="scalelab-python-"))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        before = dict(os.environ)
        self.addCleanup(lambda: (os.environ.clear(), os.environ.update(before)))
        self.addCleanup(os.chdir, os.getcwd())

    def write(self, name: str, text: str) -> str:
        path = self.dir / name
        path.write_text(text, encoding="utf-8")
        return str(path)


class Service:
    """scalelabd with data of its own, and the command-line client for it."""

    def __init__(self, config: str = "") -> None:
        """`config` is the content of the configuration file, in addition to the socket."""
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="scalelab-python-"))
        self.address = f"unix:{self.dir}/socket"
        (self.dir / "scalelabd.yaml").write_text(f'listen: ["{self.address}", "127.0.0.1:0"]\n{config}', encoding="utf-8")
        self.start()

    def start(self) -> None:
        with open(self.dir / "scalelabd.log", "a", encoding="utf-8") as log:
            command = [PROGRAMS / "scalelabd", "--data", self.dir / "data", "--noise-guard", "false",
                       "--config", self.dir / "scalelabd.yaml"]
            # Several tests run at the same time on the same cores, so an MPI rank that waits for another must yield its core.
            environment = {"OMPI_MCA_mpi_yield_when_idle": "1", **os.environ}
            self._daemon = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
        self.ready = self._daemon.stdout.readline()
        if not self.ready.startswith("ready"):
            self.stop()
            raise AssertionError(f"scalelabd did not start: {(self.dir / 'scalelabd.log').read_text()}")

    @property
    def tcp(self) -> str:
        """HOST:PORT or insecure:HOST:PORT of this start."""
        return self.ready.split()[-1]

    def stop(self) -> None:
        self._daemon.send_signal(signal.SIGTERM)
        try:
            self._daemon.wait(WITHIN)
        except subprocess.TimeoutExpired:
            self._daemon.kill()
            self._daemon.wait()
        self._daemon.stdout.close()

    def close(self) -> None:
        self.stop()
        self._end_workers()
        shutil.rmtree(self.dir, ignore_errors=True)

    def _end_workers(self) -> None:
        """Ends the workers, which survive the coordinator, and with them the runs of a test that failed."""
        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if str(self.dir).encode() in path.read_bytes():
                    os.kill(int(path.parent.name), signal.SIGTERM)
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                pass  # it has ended, or belongs to another user

    def run(self, *words: str, server: str = "") -> str:
        """Returns the standard output of `scalelab WORDS`, which must succeed."""
        done = subprocess.run([PROGRAMS / "scalelab", "--server", server or self.address, *words], capture_output=True, text=True,
                              timeout=WITHIN, check=False)
        if done.returncode != 0:
            raise AssertionError(f"scalelab {' '.join(words)}: {done.stderr}")
        return done.stdout

    def json(self, *words: str):
        return json.loads(self.run(*words, "-o", "json"))

    def wait_for_end(self, study: str) -> None:
        """Waits for the end of a study whose runs may fail."""
        subprocess.run([PROGRAMS / "scalelab", "--server", self.address, "study", "wait", study], capture_output=True, timeout=WITHIN,
                       check=False)


MUNGED = pathlib.Path("/usr/sbin/munged")


class Munged:
    """A munged with its own key and socket."""

    def __init__(self) -> None:
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="scalelab-munge-"))
        self.dir.chmod(0o711)
        self.socket = str(self.dir / "socket")
        key = self.dir / "key"
        key.write_text("k" * 64)
        key.chmod(0o400)
        files = [f"--{name}-file={self.dir / name}" for name in ("key", "pid", "log", "seed")]
        self._process = subprocess.Popen([MUNGED, "--foreground", "--force", f"--socket={self.socket}", *files],
                                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 10
        while not os.path.exists(self.socket) and time.monotonic() < deadline:
            time.sleep(0.02)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)


# A study of two cells and two repeats whose script reports invented losses. The runs of the second cell fail if the
# study requests that.
TRAIN = """
import os, time, scalelab

with scalelab.run() as run:
    while os.path.exists(os.environ.get("HOLD_BACK", "/nonexistent")):
        time.sleep(0.01)
    for step in range(run.spec["max_steps"]):
        run.step(loss=(step + 1) ** -0.5 + run.rank, total_s=0.01 / run.world_size * (1 + run.spec["seed"] / 10 + step % 3 / 100))
    run.epoch(accuracy=0.5 + run.spec["seed"] / 100)
    if run.spec["momentum"] > 0.95:
        raise RuntimeError("the momentum is too large")
"""


def study_of(**more):
    """Returns a study as a dict; train.py must be in the working directory."""
    return {"study": "small", "fixed": {"engine": "custom", "model": "none", "dataset": "none", "max_steps": 12,
                                        "command": [sys.executable, "./train.py"]},
            "matrix": {"ranks": [1, 2]}, "scaling": {"mode": "strong", "global_batch": 64}, "repeats": 2, **more}
