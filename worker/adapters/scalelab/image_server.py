"""Data sets whose images are files, and all data sets of runs on GPUs. The native trainer decodes and chooses the images
(worker/trainer/data/image_server.h), so that every engine gets the same pixels."""
import dataclasses
import json
import subprocess
import tempfile
import threading

import numpy as np

from . import stop_signal, trainer
from .errors import RunError


@dataclasses.dataclass
class ByteBatch:
    """Images that a GPU normalises and augments (torch_images.py, tensorflow_images.py, jax_images.py): a batch with layout "BYTES"."""

    pixels: np.ndarray  # uint8 [n, 3, side, side], or [n, side, side, 3] if they are interleaved
    crops: np.ndarray  # int32 [n, 3]: down, right and flip of each image, as draw_crops in augment.py returns them


class ServedData:
    """Has the interface of data.Data, but requests the images from the native trainer. If the layout of a batch is "BYTES", the
    batch is a ByteBatch."""

    def __init__(self, spec):
        self.empty = np.empty  # makes an array (shape, dtype) for a batch; an engine may replace it by one with pinned memory
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
        self.interleaved, self.mean, self.deviation = about["interleaved"], about["mean"], about["deviation"]
        labels = self._read(np.empty(about["train"] + about["test"], "<u2")).astype(np.int64)
        self.train_labels, self.test_labels = labels[: about["train"]], labels[about["train"] :]

    def train_batch(self, _, epoch, samples, layout):
        return self._ask("train", epoch, layout, samples)

    def test_batch(self, part, layout):
        return self._ask("test", 0, layout, range(*part.indices(len(self.test_labels))))

    def _ask(self, what, epoch, layout, samples):
        planar = not self.interleaved if layout == "BYTES" else layout == "NCHW"
        shape = (len(samples), 3, self.side, self.side) if planar else (len(samples), self.side, self.side, 3)
        request = f"{what} {epoch} {layout} {' '.join(map(str, samples))}\n"
        with self._lock:
            try:
                self._server.stdin.write(request.encode())
                self._server.stdin.flush()
            except OSError:
                self._fail()
            if layout != "BYTES":
                return self._read(self.empty(shape, np.float32))
            pixels = self._read(self.empty(shape, np.uint8))
            return ByteBatch(pixels, self._read(self.empty((len(samples), 3), np.int32)))

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
