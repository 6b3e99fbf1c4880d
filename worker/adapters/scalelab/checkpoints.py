"""When a run writes checkpoints, and what it has lost by interruptions, as in worker/trainer/loop/checkpoints.cc."""
import json
import os
import time

from . import stop_signal
from .checkpoint_store import Store, recipe_of
from .errors import RunError

# The time from which an attempt counts. The import of a framework, which takes seconds, comes later.
_BEGAN = time.time()
# Seconds between two agreements of the ranks: short against the time that a scheduler leaves after a signal, long against the time
# of a sum.
AGREEMENT = 0.25
_MOST_STEPS = 10_000  # between two agreements
_TAIL = 65_536  # bytes that contain the last event


class Checkpoints:
    """Without checkpoint_every_steps and checkpoint_every_minutes, nothing is written and signals keep their effect."""

    def __init__(self, spec, rank, ranks, events):
        self._spec, self._rank, self._ranks, self._events = spec, rank, ranks, events
        self.on = spec.checkpoint_every_steps > 0 or spec.checkpoint_every_minutes > 0
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

    def load_newest(self, engine, sums, close):
        """Returns (step, directory, loop) of the checkpoint to continue from, or None. `sums` adds up a list of floats over the ranks,
        and `close` disconnects from them. Collective."""
        if not self.on:
            return None
        stop_signal.record()  # frameworks set handlers of their own while they start
        self._sums, self._close = sums, close
        recipe = recipe_of(self._spec, engine)
        self._store = Store(self._directory, self._spec.checkpoint_keep, recipe, self._rank, self._ranks, sums)
        return self._store.load_newest()

    def begin(self, useful_seconds):
        """Records the start of this attempt. `useful_seconds`: time of earlier attempts until the checkpoint. Returns the seconds of
        earlier attempts whose work is lost, and of the start of this attempt if it is not the first; 0 on ranks other than 0."""
        self._since_last = time.monotonic()
        if not self.on or self._rank != 0:
            return 0.0
        path = os.path.join(self._directory, "attempts.jsonl")
        before, now = seconds_of_attempts(path), time.time()
        begin = _BEGAN if os.path.exists(path) else now
        os.makedirs(self._directory, exist_ok=True)
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"begin": begin, "events": os.environ.get("SCALELAB_EVENTS", "")}) + "\n")
        return max(0.0, before - useful_seconds) + (now - begin)

    def _agree(self, steps):
        """Shares what the ranks know about signals and time. Returns whether a checkpoint is due because of them."""
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
        """Returns whether all ranks write a checkpoint now, after `steps` steps of the run: one is due, or a rank has got a signal.
        Collective: to be called after each step but the last, except where nothing can be written."""
        if not self.on:
            return False
        if steps >= self._next_agreement or self._ranks == 1:
            self._due = self._agree(steps) or self._due
        every = self._spec.checkpoint_every_steps
        return self._due or (every > 0 and steps % every == 0)

    def save(self, steps, write, loop):
        """Writes a checkpoint and reports it. Ends the process if a rank has got a signal. Collective."""
        begin = time.monotonic()
        self._events.flush()  # the attempt that continues does not report these steps again
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
        """Removes the checkpoints of the run, which has finished. Collective."""
        if self.on:
            self._store.remove_all()


def seconds_of_attempts(path):
    """Adds up, over the attempts that a file lists (one JSON object a line: begin, events), the seconds from their begin to the last
    event in their event files. Attempts whose event file cannot be read count as 0."""
    seconds = 0.0
    for attempt in _objects(path):
        if "begin" in attempt and "events" in attempt:
            times = [e["time"] for e in _objects(attempt["events"], _TAIL) if isinstance(e.get("time"), (int, float))]
            seconds += max(0.0, times[-1] - attempt["begin"]) if times else 0.0
    return seconds


def _objects(path, tail=None):
    """Yields the JSON objects of a file's complete lines; with `tail`, of about so many bytes at its end."""
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
