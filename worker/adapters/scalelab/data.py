"""Image data sets. Those in memory have the same bytes as in worker/trainer/data/dataset.cc."""
import dataclasses
import mmap
import os

import numpy as np

from . import choices, splitmix
from .augment import draw_crops, fill_batch
from .errors import RunError
from .image_server import ServedData

_SYNTHETIC_TRAIN = 50_000  # greatest number of training images
_SYNTHETIC_BYTES = 200 << 20  # greatest size of all training images, unless train_samples is set
_RECORD = 1 + 3 * 32 * 32
_CHUNK = 1000


@dataclasses.dataclass
class Data:
    """A data set: images as bytes [n, 3, side, side] or SyntheticImages, and labels [n]. The test set is empty if the run does
    not evaluate."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    classes: int
    side: int

    def train_batch(self, spec, epoch, samples, layout):
        """Returns training images for an epoch: float32 in `layout`, normalised, and augmented if spec.augment is set."""
        crops = draw_crops(spec.seed, epoch, samples) if spec.augment else None
        return fill_batch(self.train_images[samples], crops, layout)

    def test_batch(self, part, layout):
        """Returns a slice of the test images: float32 in `layout`, normalised."""
        return fill_batch(self.test_images[part], layout=layout)


def load_data(spec):
    """Returns the data set spec.dataset, as Data or an object with the same methods, labels and sizes. Raises RunError of kind
    "data"."""
    loaders = {"synthetic": _load_synthetic, "cifar10": _load_cifar10, "imagefolder": ServedData}
    if spec.dataset in loaders:
        # For GPUs, the native trainer prepares the same images, because numpy is slower than a GPU.
        return ServedData(spec) if choices.needs_gpu(spec) else loaders[spec.dataset](spec)
    raise RunError(f'engine {spec.engine} has no data set "{spec.dataset}": it has cifar10, imagefolder and synthetic', "data")


def _empty(side):
    return np.empty((0, 3, side, side), np.uint8), np.empty(0, np.int64)


def _load_synthetic(spec):
    side, classes = spec.image_size or 32, spec.classes or 10
    fit = min(_SYNTHETIC_TRAIN, _SYNTHETIC_BYTES // (3 * side * side))
    count = min(_SYNTHETIC_TRAIN, spec.train_samples) if spec.train_samples else fit
    train = SyntheticImages(side, classes, count, first=0)
    test = SyntheticImages(side, classes, fit // 5, first=1) if spec.evaluate else None
    return Data(train, train.labels, test or _empty(side)[0], test.labels if test else _empty(side)[1], classes=classes, side=side)


class SyntheticImages:
    """Synthetic images that can be indexed like an array. An image is the pattern of its class plus noise. It depends only on its
    index and on `first`, which is 0 for training images and 1 for test images. An image is created when it is first used."""

    def __init__(self, side, classes, count, first):
        across = (side + 7) // 8
        squares = 3 * across * across
        keys = np.arange(classes * squares)
        numbers = splitmix.draws(splitmix.states(7, keys // squares, keys % squares), 1, 1)[:, 0]
        values = ((64 + splitmix.below(numbers, 128)) // 2).astype(np.uint8).reshape(classes, 3, across, across)
        # Each 8 x 8 square of a channel has one value, so that the pattern survives cropping.
        self._patterns = values.repeat(8, axis=2).repeat(8, axis=3)[:, :, :side, :side]
        self._states = splitmix.states(11, first, np.arange(count))
        self.labels = splitmix.below(splitmix.draws(self._states, 1, 1)[:, 0], classes).astype(np.int64)
        # Do not allocate with numpy: it uses large pages, so the first images would already occupy the whole memory.
        memory = mmap.mmap(-1, max(1, count * 3 * side * side))
        self._images = np.frombuffer(memory, np.uint8, count * 3 * side * side).reshape(count, 3, side, side)
        self._made = np.zeros(count, bool)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, samples):
        missing = np.arange(len(self))[samples]
        missing = missing[~self._made[missing]]
        for begin in range(0, len(missing), _CHUNK):
            self._make(missing[begin : begin + _CHUNK])
        return self._images[samples]

    def _make(self, samples):
        each = int(np.prod(self._images.shape[1:]))
        noise = splitmix.draws(self._states[samples], 2, (each + 7) // 8) & np.uint64(0x7F7F7F7F7F7F7F7F)
        pixels = noise.astype("<u8", copy=False).view(np.uint8)[:, :each].reshape(-1, *self._images.shape[1:])
        self._images[samples] = pixels + self._patterns[self.labels[samples]]
        self._made[samples] = True


def _load_cifar10(spec):
    if spec.image_size or spec.classes:
        raise RunError(
            'image_size and classes are for data set "synthetic"; "cifar10" has its own: remove them', "data"
        )
    train_files = []
    for i in range(1, 6):
        path = os.path.join(spec.data_dir, f"data_batch_{i}.bin")
        if not os.path.exists(path):
            break
        train_files.append(path)
    if not train_files:
        raise RunError(
            f"{spec.data_dir or 'data_dir'} has no data_batch_1.bin: data_dir must hold the binary version of CIFAR-10", "data"
        )
    train = _read_records(train_files, spec.train_samples)
    test = _read_records([os.path.join(spec.data_dir, "test_batch.bin")], 0) if spec.evaluate else _empty(32)
    return Data(*train, *test, classes=10, side=32)


def _read_records(paths, limit):
    """Returns (images, labels) of the first `limit` records of all files together; 0 means no limit."""
    parts, left = [], limit
    for path in paths:
        try:
            part = np.fromfile(path, np.uint8, count=-1 if not limit else left * _RECORD)
        except OSError as e:
            raise RunError(f"{path}: cannot be read: {e.strerror}", "data") from e
        if part.size == 0 or part.size % _RECORD:
            raise RunError(
                f"{path} has {part.size} bytes, not a multiple of the record size {_RECORD}; copy or unpack it again", "data"
            )
        part = part.reshape(-1, _RECORD)
        if part[:, 0].max() > 9:
            raise RunError(
                f"{path}: label {part[:, 0].max()} is not in 0 to 9: this is not a file of the binary version of CIFAR-10", "data"
            )
        parts.append(part)
        left -= len(part)
        if limit and left <= 0:
            break
    records = np.concatenate(parts)
    return np.ascontiguousarray(records[:, 1:]).reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64)
