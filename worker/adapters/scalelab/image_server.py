"""Data sets whose images are files. The native trainer decodes them (worker/trainer/data/image_server.h), so that every engine gets
the same pixels."""
import json
import subprocess
import tempfile
import threading

import numpy as np

from . import stop_signal, trainer
from .errors import RunError


class ServedData:
    """Has the interface of data.Data, but requests the images from the native trainer."""

    def __init__(self, spec):
        program, environment = trainer.program(spec)
        self._errors = tempfile.TemporaryFile()
        # The server ends at the end of its standard input, so it never outlives this process.
        with stop_signal.blocked():  # the server must ignore signals: a rank needs images until the end of its step
            self._server = subprocess.Popen(
                [program, "--serve-images"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
            )
        self._lock = threading.Lock()  # evaluation requests images while a thread requests the next training batches
        line = self._server.stdout.readline()
        if not line:
            self._fail()
        about = json.loads(line)
        self.side, self.classes = about["side"], about["classes"]
        labels = self._read(np.empty(about["train"] + about["test"], "<u2")).astype(np.int64)
        self.train_labels, self.test_labels = labels[: about["train"]], labels[about["train"] :]

    def train_batch(self, _, epoch, samples, layout):
        return self._ask("train", epoch, layout, samples)

    def test_batch(self, part, layout):
        return self._ask("test", 0, layout, range(*part.indices(len(self.test_labels))))

    def _ask(self, what, epoch, layout, samples):
        shape = (3, self.side, self.side) if layout == "NCHW" else (self.side, self.side, 3)
        request = f"{what} {epoch} {layout} {' '.join(map(str, samples))}\n"
        with self._lock:
            try:
                self._server.stdin.write(request.encode())
                self._server.stdin.flush()
            except OSError:
                self._fail()
            return self._read(np.empty((len(samples), *shape), "<f4"))

    def _read(self, array):
        left = memoryview(array).cast("B")
        while left:
            count = self._server.stdout.readinto(left)
            if not count:
                self._fail()
            left = left[count:]
        return array

    def _fail(self):
        status = self._server.wait()
        self._errors.seek(0)
        raise RunError(trainer.reason(self._errors.read(), status), "data")
