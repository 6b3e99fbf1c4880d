"""The recipe, which is the same in all engines: the samples and their order, the augmentation, the learning rates and the initial
weights.

Adapters import all parts of the recipe from this module.
"""
import math
import queue
import subprocess
import threading

import numpy as np

from . import splitmix, trainer
from .augment import draw_crops, fill_batch  # noqa: F401
from .data import Data, load_data  # noqa: F401
from .errors import RunError
from .safetensors import parse_safetensors, read_safetensors, write_safetensors  # noqa: F401
from .spec import Spec, parse_lr_milestones  # noqa: F401


class Sampler:
    """Determines the samples of each rank and step, like worker/trainer/data/sampler.h.

    Each epoch is one permutation of all samples, which depends only on (seed, epoch). Step k trains on the k-th global batch of the
    permutation for any number of ranks, and rank r takes the r-th contiguous slice of the batch. An incomplete last batch is dropped.
    """

    def __init__(self, samples, global_batch, rank, ranks, seed):
        self.steps_per_epoch = samples // global_batch
        self.samples_per_epoch = self.steps_per_epoch * global_batch
        self._samples, self._batch, self._rank, self._ranks, self._seed = samples, global_batch, rank, ranks, seed
        self._order = None

    def start_epoch(self, epoch):
        bounds = np.arange(self._samples, 1, -1, dtype=np.uint64)  # i + 1 for i from the last down to 1
        numbers = splitmix.draws(splitmix.states(self._seed, epoch, 0), 1, len(bounds))[0]
        partners = splitmix.below(numbers, bounds).tolist()
        order = list(range(self._samples))
        for i, j in zip(range(self._samples - 1, 0, -1), partners):
            order[i], order[j] = order[j], order[i]
        self._order = np.array(order)

    def slice(self, step):
        """Returns this rank's samples in a step of the epoch."""
        first, end = (self._batch * r // self._ranks for r in (self._rank, self._rank + 1))
        return self._order[step * self._batch + first : step * self._batch + end]


def check_size(spec, data):
    """Raises RunError if the training set is smaller than one global batch."""
    if len(data.train_labels) < spec.global_batch:
        raise RunError(
            f"the training set has {len(data.train_labels)} samples, fewer than one global batch of {spec.global_batch}: "
            "use a smaller global_batch or more train_samples",
            "data",
        )


class Batches:
    """Iterates over the batches of a run: (images as float32 in `layout`, labels as int64).

    The iteration begins with the batch of step `first_step` and ends after step `total_steps` - 1. The batches are the same as in
    the native trainer. A thread prepares them in advance, and passes each batch to `prepare`(images, labels), which may change
    it. If the thread fails, the call that would return the batch raises the error.
    """

    AHEAD = 2

    def __init__(self, spec, data, rank, ranks, layout="NCHW", prepare=None, first_step=0):
        self.sampler = Sampler(len(data.train_labels), spec.global_batch, rank, ranks, spec.seed)
        check_size(spec, data)
        self.steps_per_epoch = self.sampler.steps_per_epoch
        self.total_steps = spec.epochs * self.steps_per_epoch
        if spec.max_steps:
            self.total_steps = min(self.total_steps, spec.max_steps)
        self._spec, self._data, self._layout, self._first = spec, data, layout, first_step
        self._prepare = prepare or (lambda images, labels: (images, labels))
        self._ready = queue.Queue(self.AHEAD)
        # A daemon thread, because a run that fails does not consume the remaining batches.
        threading.Thread(target=self._fill, daemon=True).start()

    def __iter__(self):
        return self

    def __next__(self):
        batch = self._ready.get()
        if batch is None:
            raise StopIteration
        if isinstance(batch, BaseException):
            raise batch
        return batch

    def _fill(self):
        try:
            for step in range(self._first, self.total_steps):
                epoch, in_epoch = divmod(step, self.steps_per_epoch)
                if in_epoch == 0 or step == self._first:
                    self.sampler.start_epoch(epoch)
                samples = self.sampler.slice(in_epoch)
                images = self._data.train_batch(self._spec, epoch, samples, self._layout)
                self._ready.put(self._prepare(images, self._data.train_labels[samples]))
            self._ready.put(None)
        except BaseException as e:  # pylint: disable=broad-except
            self._ready.put(e)


def learning_rate(spec, step, steps_per_epoch):
    """Returns the learning rate of `step`, counted from 0 over the whole run, like worker/trainer/optim/schedule.cc.

    During warmup_epochs, the rate increases linearly from warmup_start_rate to learning_rate (Goyal et al. 2017, section 2.2).
    After that it follows lr_schedule. Schedule "step" divides the rate by 10 at each of lr_milestones.
    """
    epoch, end = step / steps_per_epoch, float(spec.epochs)
    if epoch < spec.warmup_epochs:
        return spec.warmup_start_rate + (spec.learning_rate - spec.warmup_start_rate) * epoch / spec.warmup_epochs
    if spec.lr_schedule == "step":
        milestones = parse_lr_milestones(spec.lr_milestones) or [end / 2, end * 3 / 4]
        divisor = 1.0
        for milestone in milestones:
            divisor *= 1 if epoch < milestone else 10
        return spec.learning_rate * (1 / divisor)
    if spec.lr_schedule == "cosine":
        done = min(1.0, (epoch - spec.warmup_epochs) / max(1e-9, end - spec.warmup_epochs))
        return spec.learning_rate * 0.5 * (1 + math.cos(math.pi * done))
    return spec.learning_rate


def is_buffer(name):
    """Returns whether the tensor with this native name is a buffer, which is not trained and not part of parameter_hash."""
    return name.rsplit(".", 1)[-1] in ("running_mean", "running_var", "num_batches_tracked")


def initial_parameters(spec):
    """Returns the initial weights of the native engines as float32 arrays in PyTorch's layout, by native name. Buffers are
    included.

    `$SCALELAB_TRAINER --print-initial-parameters` prints them.
    """
    program, environment = trainer.program(spec)
    try:
        done = subprocess.run([program, "--print-initial-parameters"], env=environment, capture_output=True, check=False)
        if done.returncode == 0:
            return parse_safetensors(done.stdout)
        why = trainer.reason(done.stderr, done.returncode)
    except (OSError, ValueError, KeyError) as e:
        why = str(e)
    raise RunError(f"{program} --print-initial-parameters (SCALELAB_TRAINER) printed no weights: {why}", "configuration")
