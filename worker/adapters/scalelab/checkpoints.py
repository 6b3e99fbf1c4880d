"""Decides when a run writes checkpoints, and measures the lost work of interruptions, like worker/trainer/loop/checkpoints.cc."""
import json
import os
import sys
import time

from . import stop_signal
from .checkpoint_store import Store, recipe_of
from .errors import RunError

# The begin of the attempt. The import of a framework, which takes seconds, is later.
_BEGAN = time.time()
# Seconds between two agreements of the ranks. Shorter than the time that a scheduler allows after a signal, and longer than the
# time of a sum.
AGREEMENT = 0.25
_MOST_STEPS = 10_000  # greatest number of steps between two agreements
_TAIL = 65_536  # bytes that contain the last event


def are_on(spec):
    """Returns whether the run writes checkpoints."""
    return spec.checkpoint_every_steps > 0 or spec.checkpoint_every_minutes > 0


class Checkpoints:
    """The checkpoints of a run. If neither checkpoint_every_steps nor checkpoint_every_minutes is set, no checkpoint is written,
    and signals end the process as usual."""

    def __init__(self, spec, rank, ranks, events):
        """`ranks` is the number of processes."""
        self._spec, self._rank, self._ranks, self._events = spec, rank, ranks, events
        self.on = are_on(spec)
        self.seconds = 0.0  # spent by this attempt in `save`
        self._agreed_at, self._next_agreement, self._due, self._signalled = None, 0, False, 0
        self._since_last = self._since_agreement = time.monotonic()
        self._directory = os.environ.get("SCALELAB_CHECKPOINT_DIR", "")
        if not self.on:
            return
        if not self._directory:
            raise RunError(
                "checkpoints need a directory: set SCALELAB_CHECKPOINT_DIR, or remove checkpoint_every_steps and "
                "checkpoint_every_minutes",
                "configuration",
            )
        stop_signal.record()

    def load_newest(self, engine, sums, close, replicas=1):
        """Returns (step, directory, loop) of the checkpoint to continue from, or None. `sums` must add up a list of floats over
        the ranks, and `close` must disconnect from them. `replicas` is the number of replicas in each process. Collective."""
        if not self.on:
            return None
        stop_signal.record()  # again, because frameworks set their own handlers while they start
        self._sums, self._close = sums, close
        recipe = {**recipe_of(self._spec, engine), "replicas": replicas}
        self._store = Store(self._directory, self._spec.checkpoint_keep, recipe, self._rank, self._ranks, sums)
        return self._store.load_newest()

    def begin(self, useful_seconds):
        """Records the start of this attempt. `useful_seconds` is the time of earlier attempts until the checkpoint. Returns the
        lost seconds: work of earlier attempts after the checkpoint, and the start of this attempt if it is not the first one.
        Returns 0 on ranks other than 0."""
        self._since_last = time.monotonic()
        if not self.on or self._rank != 0:
            return 0.0
        path = os.path.join(self._directory, "attempts.jsonl")
        before, now = seconds_of_attempts(path), time.time()
        begin = _BEGAN if os.path.exists(path) else now
        try:
            os.makedirs(self._directory, exist_ok=True)
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps({"begin": begin, "events": os.environ.get("SCALELAB_EVENTS", "")}) + "\n")
        except OSError as e:  # without this line, a later attempt only knows less about the lost time
            print(f"cannot write {path}: {e.strerror}", file=sys.stderr, flush=True)
        return max(0.0, before - useful_seconds) + (now - begin)

    def _agree(self, steps):
        """Lets the ranks agree whether a rank has received a signal, or the time for a checkpoint has come. Returns whether a
        checkpoint is due for one of these reasons."""
        now = time.monotonic()
        each = AGREEMENT if self._agreed_at is None else (now - self._since_agreement) / (steps - self._agreed_at)
        minutes = self._spec.checkpoint_every_minutes
        due = minutes > 0 and now - self._since_last >= 60 * minutes
        known = [float(stop_signal.number() == number) for number in stop_signal.SIGNALS]
        *known, due, each = self._sums([*known, float(due), each])
        self._signalled = next((number for number, ranks in zip(stop_signal.SIGNALS, known) if ranks > 0), 0)
        between = int(AGREEMENT * self._ranks / max(each, 1e-9))
        self._next_agreement = steps + min(max(between, 1), _MOST_STEPS)
        self._agreed_at, self._since_agreement = steps, time.monotonic()
        return self._signalled != 0 or due > 0

    def due(self, steps):
        """Returns whether all ranks must write a checkpoint now, after `steps` steps of the run, because it is due or because a
        rank has received a signal. Collective. Must be called after each step except the last one, but not where the state cannot
        be written."""
        if not self.on:
            return False
        if steps >= self._next_agreement or self._ranks == 1:
            self._due = self._agree(steps) or self._due
        every = self._spec.checkpoint_every_steps
        return self._due or (every > 0 and steps % every == 0)

    def save(self, steps, write, loop):
        """Writes a checkpoint and reports it. Ends the process if a rank has received a signal. Collective."""
        begin = time.monotonic()
        self._events.sync()  # the attempt that continues does not report these steps again
        size = self._store.save(steps, write, loop)
        now = time.monotonic()
        self.seconds += now - begin
        self._since_last = self._since_agreement = now
        self._agreed_at, self._due = steps, False
        if size is not None and self._rank == 0:
            self._events.checkpoint(steps, {"checkpoint/seconds": now - begin, "checkpoint/bytes": size})
        if self._signalled:
            self._sums([0.0])  # the launcher may end all ranks when the first one ends
            self._close()
            stop_signal.end_process(self._signalled)

    def remove_all(self):
        """Removes the checkpoints of the run. Must be called after the end of the run. Collective."""
        if self.on:
            self._store.remove_all()


def seconds_of_attempts(path):
    """Returns the total duration in seconds of the attempts that a file lists. Each line of the file is a JSON object with the
    begin of an attempt and the path of its event file. The duration is the time from the begin to the last event; it is 0 if the
    event file cannot be read."""
    seconds = 0.0
    for attempt in _objects(path):
        if "begin" in attempt and "events" in attempt:
            times = [e["time"] for e in _objects(attempt["events"], _TAIL) if isinstance(e.get("time"), (int, float))]
            seconds += max(0.0, times[-1] - attempt["begin"]) if times else 0.0
    return seconds


def _objects(path, tail=None):
    """Yields the JSON objects in the complete lines of a file. With `tail`, reads only about this number of bytes at the end."""
    try:
        with open(path, "rb") as file:
            if tail is not None:
                file.seek(max(0, os.fstat(file.fileno()).st_size - tail))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return
    for line in lines:
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            yield found
