"""The training loop of all adapters, for one rank of a run, with the events and metrics of worker/trainer/loop/train_loop.cc.

`train` runs the loop.
"""
import dataclasses
import hashlib
import os
import sys
import time
import typing

import numpy as np

from . import choices, recipe
from .checkpoints import Checkpoints
from .meter import RunMeter, peak_resident_bytes, straggler_skew
from .step_log import EpochSums, StepLog
from .waits import Waits


@dataclasses.dataclass
class _Totals:
    """Sums over all epochs of a run, for its `finish` event."""

    train_loss: typing.Optional[float] = None
    training_seconds: float = 0.0
    cpu_seconds: float = 0.0
    samples: float = 0.0
    accuracy: typing.Optional[float] = None
    time_to_accuracy: typing.Optional[float] = None
    samples_to_accuracy: typing.Optional[float] = None
    run_seconds: float = 0.0  # time of steps, evaluations and checkpoints
    checkpoint_seconds: float = 0.0  # time of writing checkpoints
    lost_seconds: float = 0.0  # time of lost work and of restarts


def parameter_hash(parameters):
    """Returns 16 hexadecimal digits of SHA-256 over the parameters (not the buffers) in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(parameters):
        if not recipe.is_buffer(name):
            digest.update(np.ascontiguousarray(parameters[name]).tobytes())
    return digest.hexdigest()[:16]


def train(engine_class, spec, rank, ranks, events):
    """Runs the training, from loading the data to the `finish` event. Returns a function that closes the engine."""
    checkpoints = Checkpoints(spec, rank, 1 if engine_class.one_process else ranks, events)
    data = recipe.load_data(spec)
    # Make the checks that need no other rank, before the engine waits for other ranks.
    recipe.check_size(spec, data)
    if not choices.needs_gpu(spec):
        choices.check_precision(spec, gpu=False)
    engine = engine_class(spec, data, rank, ranks, recipe.initial_parameters(spec))
    training = _Training(engine, spec, data, rank, ranks, events, checkpoints)
    training.begin()
    while training.step < training.batches.total_steps:
        training.train_epoch()
    training.finish()
    return training.waits.close


class _Training:
    """A run on this rank, from its first step or from the step of a checkpoint."""

    def __init__(self, engine, spec, data, rank, ranks, events, checkpoints):
        self._engine, self._spec, self._data, self._rank, self._events = engine, spec, data, rank, events
        self._checkpoints = checkpoints
        # A process that drives all replicas gets whole batches.
        self._part, self._parts = (0, 1) if engine.one_process else (rank, ranks)
        self._ranks = ranks
        self._cores = spec.cpus_per_rank * (ranks if engine.one_process else 1)
        self.waits = Waits(engine, spec.comm_timeout_s, self._parts)
        self._meter = RunMeter(spec.warmup_steps, spec.global_batch)
        self._totals, self._sums, self._first = _Totals(), EpochSums(), 0
        if checkpoints.on:
            self.waits.barrier()  # ranks start at different speeds
            replicas = ranks if engine.one_process else 1
            self._continue(checkpoints.load_newest(engine.name, self.waits.sum, self.waits.close, replicas))
        part = engine.data_part(rank, ranks)
        self.batches = recipe.Batches(spec, data, *part, engine.batch_layout, engine.prepare, self._first)
        self._copies = self._parts / part[1]  # number of ranks that train on each sample
        self.step = self._first

    def _continue(self, checkpoint):
        if checkpoint is None:
            return
        self._first, directory, loop = checkpoint
        self.waits.load(directory)
        self._totals, self._sums = _Totals(**loop["totals"]), EpochSums(**loop["epoch"])
        self._meter.continue_after(self._first, loop["meter"])

    def begin(self):
        self.waits.barrier()  # excludes the time that other ranks need to load from the first step
        self._totals.lost_seconds = self._checkpoints.begin(self._totals.run_seconds)
        self._before = self._totals.run_seconds, self._totals.checkpoint_seconds
        engine = self._engine
        self._events.start(
            engine.framework,
            engine.version(),
            self._ranks,
            self._rank,
            self.batches.total_steps,
            engine.device_model(),
            self._first,
        )
        self._begin = time.perf_counter()

    def train_epoch(self):
        """Trains from the current step to the end of its epoch, evaluates, and reports both."""
        in_epoch = self.batches.steps_per_epoch
        epoch = self.step // in_epoch
        end = min(self.batches.total_steps, (epoch + 1) * in_epoch)
        log = StepLog(self._events, self._meter, self._rank, self._sums)
        cpu_before, last = time.process_time(), time.perf_counter()  # excludes the time of the evaluation
        while self.step < end:
            if self.step > max(epoch * in_epoch, self._first) and self._checkpoints.due(self.step):
                self.waits.end(log)
                self._totals.cpu_seconds += time.process_time() - cpu_before
                self._save(log.sums)
                cpu_before, last = time.process_time(), time.perf_counter()
                log.resume()
            rate = recipe.learning_rate(self._spec, self.step, in_epoch)
            ready = time.perf_counter()  # `add` may have waited for results of the device, which is no wait for data
            images, labels = next(self.batches)
            loaded = time.perf_counter()
            result = self.waits.step(images, labels, rate)
            now = time.perf_counter()
            self.waits.add(log, (epoch, self.step), result, now - last, loaded - ready, rate, len(labels))
            last, self.step = now, self.step + 1
        self.waits.end(log)
        self._totals.cpu_seconds += time.process_time() - cpu_before
        self._sums = EpochSums()
        self._end_epoch(epoch, log.sums)
        if self.step < self.batches.total_steps and self._checkpoints.due(self.step):
            self._save(self._sums)

    def _measure_run(self):
        self._totals.run_seconds = self._before[0] + time.perf_counter() - self._begin
        self._totals.checkpoint_seconds = self._before[1] + self._checkpoints.seconds

    def _save(self, sums):
        """Writes a checkpoint after the current step. `sums` are the sums of the current epoch."""
        self._measure_run()
        loop = {"totals": dataclasses.asdict(self._totals), "epoch": dataclasses.asdict(sums), "meter": self._meter.state()}
        self._checkpoints.save(self.step, self._engine.save, loop)

    def _end_epoch(self, epoch, sums):
        self._measure_run()
        totals = self._totals
        totals.training_seconds += sums.seconds
        loss, correct, samples = (n / self._copies for n in self.waits.sum([sums.loss, sums.correct, sums.samples]))
        totals.train_loss = loss / samples
        totals.samples += samples
        metrics = {
            "epoch/seconds": sums.seconds,
            "epoch/throughput": samples / sums.seconds,
            "epoch/train_loss": totals.train_loss,
            "epoch/train_accuracy": correct / samples,
        }
        if self._spec.evaluate:
            evaluation = self._evaluate()
            metrics.update(evaluation)
            totals.accuracy = evaluation["eval/accuracy"]
            reached = 0 < self._spec.target_accuracy <= totals.accuracy
            if reached and totals.time_to_accuracy is None:
                totals.time_to_accuracy = totals.training_seconds + totals.checkpoint_seconds + totals.lost_seconds
                totals.samples_to_accuracy = totals.samples
        self._events.epoch(epoch, metrics)

    def _evaluate(self):
        """Evaluates every image of the test set once, distributed over all ranks. Returns the metrics."""
        begin = time.perf_counter()
        self.waits.begin_evaluation()
        images = len(self._data.test_labels)
        first, end = images * self._part // self._parts, images * (self._part + 1) // self._parts
        batch = max(1, min(250, (1 << 20) // (self._data.side * self._data.side)))
        loss = correct = 0.0
        for at in range(first, end, batch):
            part = slice(at, min(end, at + batch))
            more = self._engine.evaluate(self._data.test_batch(part, self._engine.batch_layout), self._data.test_labels[part])
            loss, correct = loss + more[0], correct + more[1]
        loss, correct, samples = self.waits.sum([loss, correct, float(end - first)])
        return {
            "eval/loss": loss / samples,
            "eval/accuracy": correct / samples,
            "eval/samples": samples,
            "eval/seconds": time.perf_counter() - begin,
        }

    def finish(self):
        totals, meter = self._totals, self._meter
        compute = meter.mean_compute()
        skew = None
        if compute is not None:
            skew = straggler_skew(self.waits.sum([compute if r == self._part else 0.0 for r in range(self._parts)]))
        memory = peak_resident_bytes()  # the copy of the parameters is not part of the training
        parameters = self.waits.parameters()
        if self._spec.save_parameters and self._rank == 0:
            path = os.path.join(os.environ.get("SCALELAB_ATTEMPT_DIR", "."), "parameters.safetensors")
            recipe.write_safetensors(path, parameters)
        if not meter.metrics(1) and self._rank == 0:
            print(
                f"nothing was measured: the run has {meter.steps} steps and warmup_steps is {self._spec.warmup_steps}",
                file=sys.stderr,
            )
        on = self._checkpoints.on
        self._events.finish(
            {
                **meter.metrics(self.batches.sampler.samples_per_epoch),
                "run/peak_memory_bytes": memory,
                "run/cpu_utilisation": totals.cpu_seconds / (totals.training_seconds * self._cores),
                "run/accuracy": totals.accuracy,
                "run/train_loss": totals.train_loss,
                "run/time_to_accuracy_s": totals.time_to_accuracy,
                "run/samples_to_accuracy": totals.samples_to_accuracy,
                "run/straggler_skew": skew,
                "run/steps": meter.steps,
                "run/seconds": totals.run_seconds + totals.lost_seconds,
                "run/checkpoint_seconds": totals.checkpoint_seconds if on else None,
                "run/lost_seconds": totals.lost_seconds if on else None,
                **self._engine.run_metrics(),
            },
            parameter_hash(parameters),
        )
        self.waits.finished()
        self._checkpoints.remove_all()
