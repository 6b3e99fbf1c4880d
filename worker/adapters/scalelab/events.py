"""Writes the event file of a rank (docs/users/write-a-training-script.md, "Event lines"). Uses only the standard library."""
import errno
import json
import math
import os
import time

from .errors import RunError

# Seconds between two writes of step lines: one write contains many steps.
FLUSH_AFTER = 0.5
MESSAGE_LIMIT = 4000


def _number(value):
    value = float(value)
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


class Events:
    """Appends events to one file, or to the file of each replica if one process drives all replicas.

    Writes only complete lines, many of them with one write. Step lines are buffered until a step ends FLUSH_AFTER seconds or more
    after the last write. Every other event is written immediately, after the buffered steps. `metrics` maps names to numbers; a
    value of None is left out. Not thread-safe. Raises OSError if the file cannot be written.
    """

    def __init__(self, paths):
        """`paths` is a path, or a list with the path of each replica. An empty path means standard output."""
        self._descriptors = []
        for path in [paths] if isinstance(paths, str) else paths:
            try:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
                self._descriptors.append(os.open(path, flags, 0o644) if path else 1)
            except OSError as e:
                raise RunError(f"cannot open the event file {path} (SCALELAB_EVENTS): {e.strerror}") from e
        self._pending = [[] for _ in self._descriptors]
        self._written = time.monotonic()

    def start(self, framework, version, world_size, rank, total_steps, device, resumed_step=0):
        """Writes the `start` event. In the file of replica i, the rank is `rank` + i. `device` is the model of the CPU or the
        GPU."""
        for i in range(len(self._descriptors)):
            more = dict(framework=framework, version=version, world_size=world_size, rank=rank + i, total_steps=total_steps)
            more["device"] = device
            if resumed_step > 0:
                more["resumed_step"] = resumed_step
            self._add("start", more, file=i)
        self.flush()

    def step(self, epoch, step, metrics):
        self._add("step", dict(epoch=epoch, step=step), metrics)
        if time.monotonic() - self._written >= FLUSH_AFTER:
            self.flush()

    def epoch(self, epoch, metrics):
        self._add("epoch", dict(epoch=epoch), metrics)
        self.flush()

    def checkpoint(self, step, metrics):
        """Reports a complete checkpoint after `step` steps."""
        self._add("checkpoint", dict(step=step), metrics)
        self.flush()

    def finish(self, metrics, parameter_hash):
        self._add("finish", {}, metrics, dict(parameter_hash=parameter_hash))
        self.flush()
        for descriptor in self._descriptors:
            os.close(os.dup(descriptor))  # a network file system may report a failed write only when a descriptor is closed

    def error(self, message, kind):
        self._add("error", dict(message=message[:MESSAGE_LIMIT], kind=kind))
        self.flush()

    def _add(self, event, fields, metrics=None, last=None, file=None):
        line = {"time": round(time.time(), 6), "event": event, **fields}
        if metrics is not None:
            line["metrics"] = {key: _number(value) for key, value in metrics.items() if value is not None}
        line.update(last or {})
        text = json.dumps(line, separators=(",", ":")) + "\n"
        for i, pending in enumerate(self._pending):
            if file is None or file == i:
                pending.append(text)

    def flush(self):
        """Writes the buffered steps."""
        for descriptor, pending in zip(self._descriptors, self._pending):
            data = "".join(pending).encode()
            pending.clear()
            while data:
                data = data[os.write(descriptor, data) :]
        self._written = time.monotonic()

    def sync(self):
        """Writes the buffered steps and syncs the files, so that all events so far survive a power failure."""
        self.flush()
        for descriptor in self._descriptors:
            try:
                os.fsync(descriptor)
            except OSError as e:
                if e.errno not in (errno.EINVAL, errno.ENOTSUP):  # standard output may be a pipe, which cannot be synced
                    raise
