"""Checkpoints of a run, from which another attempt can continue. All ranks and all attempts of the run share their directory.

  DIRECTORY/step-000000001200/shared.*, rank-R.*   files of the engine in the format of its framework
                              rank-R.json          sizes and checksums of the engine's files of rank R, and the state of its
                              training loop manifest.json        checksums of all rank-R.json; written last

A checkpoint without a manifest is not complete. The first line of the manifest is the checksum of the manifest. Therefore any
truncated or changed file is detected. The native trainer uses the same directories
(worker/trainer/checkpoint/checkpoint_store.h).
"""
import json
import os
import re
import shutil
import sys

from . import durable
from .errors import RunError
from .spec import PARAMETERS

# Parameters of the recipe that may nevertheless differ between the attempts of a run.
_MAY_DIFFER = ("ranks", "batch_per_rank", "epochs", "max_steps")
_STEP = re.compile(r"step-(\d+)")
_DIGIT = 1 << 16  # ranks exchange integers below this as sums of floats, which are exact in every framework


class _Damaged(Exception):
    pass


def recipe_of(spec, engine):
    """Returns the parameters that must be equal in the attempt that writes a checkpoint and in the attempt that reads it."""
    names = [p["name"] for p in PARAMETERS if p["recipe"] and p["name"] not in _MAY_DIFFER]
    return {"engine": engine, **{name: getattr(spec, name) for name in names}}


class Store:
    """`sums` returns the element-wise sum of a list of floats over ranks. Unless documented otherwise, methods are collective."""

    def __init__(self, directory, keep, recipe, rank, ranks, sums):
        self.directory, self._keep, self._recipe = directory, keep, recipe
        self._rank, self._ranks, self._sums = rank, ranks, sums
        self._directory_synced = False  # on rank 0: whether the directory survives a power failure
        self.damaged = 0  # number of damaged checkpoints that load_newest has skipped

    def _path(self, step):
        return os.path.join(self.directory, f"step-{step:012}")

    def _steps(self):
        """Returns the steps of the checkpoints with a manifest, newest first. Raises OSError if the directory exists and cannot be
        listed. Not collective."""
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:  # without a checkpoint there is no directory
            return []
        steps = [int(match[1]) for match in map(_STEP.fullmatch, names) if match]
        return sorted((s for s in steps if not _is_absent(os.path.join(self._path(s), "manifest.json"))), reverse=True)

    def _any(self, true_here):
        return self._sums([float(true_here)])[0] > 0

    def _gather(self, text):
        """Gathers the hexadecimal texts of all ranks. They must have the same length, which is a multiple of 4."""
        digits = [int(text[i : i + 4], 16) for i in range(0, len(text), 4)]
        numbers = [0.0] * (self._ranks * len(digits))
        numbers[self._rank * len(digits) : (self._rank + 1) * len(digits)] = digits
        all_digits = [f"{int(n):04x}" for n in self._sums(numbers)]
        return ["".join(all_digits[i : i + len(digits)]) for i in range(0, len(all_digits), len(digits))]

    def save(self, step, write, loop):
        """Writes a checkpoint, and then removes the oldest checkpoints. `write`(directory) must write the engine's files of this
        rank durably and return their names. `loop` is a JSON object with the state of the training loop. Returns the total number
        of bytes of all ranks. If a rank cannot write its files, prints a line to standard error, removes the files of this
        checkpoint and returns None; training can continue."""
        path, error, own = self._path(step), None, "0" * 64
        size = 0
        try:
            os.makedirs(path, exist_ok=True)  # on every rank: the directory may not be visible on other nodes yet
            files = [dict(zip(("name", "bytes", "sum"), (name, *durable.sum_of_file(os.path.join(path, name))))) for name in write(path)]
            text = json.dumps({"files": files, "loop": loop}).encode()
            with durable.replace(os.path.join(path, f"rank-{self._rank}.json")) as file:
                file.write(text)
            own, size = durable.sum_of(text), len(text) + sum(f["bytes"] for f in files)
        except (OSError, RuntimeError, ValueError) as e:
            error = e
        ranks = self._gather(f"{int(error is not None):04x}{size:016x}{own}")
        failed = any(int(r[:4], 16) for r in ranks)
        if self._rank == 0 and not failed:
            try:
                self._write_manifest(step, [r[20:] for r in ranks])
            except OSError as e:
                error = e
        if error is not None:
            print(f"no checkpoint after step {step}: {error}", file=sys.stderr, flush=True)
        failed = failed or self._any(error is not None)  # afterwards, no rank writes
        if self._rank == 0:
            _ignoring_errors(self._remove_old)  # also the files of this checkpoint, if it is not complete
        return None if failed else sum(int(r[4:20], 16) for r in ranks)

    def _write_manifest(self, step, sums):
        body = json.dumps({"format": 1, "step": step, "recipe": self._recipe, "ranks": sums}, indent=1).encode() + b"\n"
        # The worker creates the directory of the run before the first attempt, and does not sync it.
        (durable.sync_directory if self._directory_synced else durable.sync_directories)(self.directory)
        self._directory_synced = True
        with durable.replace(os.path.join(self._path(step), "manifest.json")) as file:
            file.write(durable.sum_of(body).encode() + b"\n" + body)

    def _remove_old(self):
        for step in self._steps()[self._keep :]:
            _ignoring_errors(os.remove, os.path.join(self._path(step), "manifest.json"))
        for name in os.listdir(self.directory):
            path = os.path.join(self.directory, name)
            incomplete = _STEP.fullmatch(name) and _is_absent(os.path.join(path, "manifest.json"))
            if incomplete or name.startswith("damaged-"):
                shutil.rmtree(path, ignore_errors=True)  # a later checkpoint removes files that cannot be removed now

    def load_newest(self):
        """Returns (step, directory, loop) of the newest complete and undamaged checkpoint, or None. Skips damaged checkpoints,
        and reports them on standard error. Raises RunError if a checkpoint belongs to a run with a different recipe, or if its file
        system fails: the checkpoint may be undamaged."""
        # Rank 0 decides, because other nodes may have an older view of the directory.
        try:
            found = self._steps() if self._rank == 0 else []
        except OSError as e:
            raise RunError(f"cannot list {self.directory}: {e.strerror}; start again when its file system works") from e
        for _ in range(int(self._sums([float(len(found))])[0])):
            here = found.pop(0) if self._rank == 0 else 0
            low, middle, high = self._sums([float(here >> shift & _DIGIT - 1) for shift in (0, 16, 32)])
            step = int(low) + _DIGIT * int(middle) + _DIGIT**2 * int(high)
            path, loop, error, failure = self._path(step), None, None, None
            try:
                loop = self._verified(path)
            except (FileNotFoundError, ValueError, KeyError, _Damaged) as e:
                error = e
            except OSError as e:
                failure = e
            damaged = self._any(error is not None)
            if failure is not None:
                raise RunError(
                    f"cannot read {failure.filename or path}: {failure.strerror}; start again when its file system works"
                ) from failure
            if not damaged:
                return step, path, loop
            self.damaged += 1
            if error is not None:
                print(f"checkpoint after step {step} is damaged, the one before it is used: {error}", file=sys.stderr, flush=True)
            if self._rank == 0:
                aside = os.path.join(self.directory, f"damaged-{os.path.basename(path)}")
                shutil.rmtree(aside, ignore_errors=True)
                _ignoring_errors(os.rename, path, aside)
        return None

    def _verified(self, path):
        """Checks all files that this rank reads. Returns the state of its training loop. Not collective."""
        manifest_path = os.path.join(path, "manifest.json")
        with open(manifest_path, "rb") as file:
            head, _, body = file.read().partition(b"\n")
        if head.decode(errors="replace") != durable.sum_of(body):
            raise _Damaged(f"{manifest_path} has changed since it was written")
        manifest = json.loads(body)
        self._check_recipe(manifest, path)
        of_rank = {rank: self._listed(path, rank, manifest["ranks"][rank]) for rank in {0, self._rank}}
        shared = [file for file in of_rank[0]["files"] if file["name"].startswith("shared.")]
        for file in (*of_rank[self._rank]["files"], *shared):
            name = os.path.join(path, file["name"])
            size, found = durable.sum_of_file(name)
            if size != file["bytes"]:
                raise _Damaged(f"{name} has {size} bytes, not {file['bytes']}")
            if found != file["sum"]:
                raise _Damaged(f"{name} has changed since it was written")
        return of_rank[self._rank]["loop"]

    @staticmethod
    def _listed(path, rank, wanted):
        name = os.path.join(path, f"rank-{rank}.json")
        with open(name, "rb") as file:
            text = file.read()
        if durable.sum_of(text) != wanted:
            raise _Damaged(f"{name} has changed since it was written")
        return json.loads(text)

    def _check_recipe(self, manifest, path):
        """Raises RunError if the checkpoint has a different recipe. All ranks read the same manifest, so either all of them raise
        the error or none."""
        for name, value in json.loads(json.dumps(self._recipe)).items():
            theirs = manifest["recipe"].get(name, value)  # equal if the parameter did not exist when the checkpoint was written
            if theirs != value:
                raise RunError(
                    f"checkpoint {path} was written with {name} {json.dumps(theirs)}, this run has {json.dumps(value)}: restore {name}, "
                    "or remove the checkpoints of the run",
                    "configuration",
                )
        if len(manifest["ranks"]) != self._ranks:
            raise RunError(
                f"checkpoint {path} was written by {len(manifest['ranks'])} ranks, and engine {self._recipe['engine']} needs as many to "
                f"continue, not {self._ranks}: start as many ranks, or remove the checkpoints of the run",
                "configuration",
            )

    def remove_all(self):
        """Removes all checkpoints."""
        self._sums([0.0])  # all ranks have finished
        if self._rank == 0:
            shutil.rmtree(self.directory, ignore_errors=True)
        self._directory_synced = False


def _is_absent(path):
    """Returns whether a file certainly does not exist. If its file system fails, it may exist."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass
    return False


def _ignoring_errors(function, *arguments):
    try:
        function(*arguments)
    except OSError:
        pass
