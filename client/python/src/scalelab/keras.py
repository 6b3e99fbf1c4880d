"""A callback for Keras: `model.fit(..., callbacks=[scalelab.keras.Callback(run)])` inside `with scalelab.run() as run`."""
from __future__ import annotations

from typing import Any, Mapping

import keras

from scalelab.events import Run


class Callback(keras.callbacks.Callback):
    """Reports each batch as a step, with the metrics that Keras has computed. Reports each epoch with its validation metrics:
    `val_accuracy` becomes `eval/accuracy`.

    Keras computes the mean loss of all batches of the epoch so far. From these means, the callback computes `train/loss`, the
    loss of the batch. With `steps_per_execution=N`, Keras calls the callback once for N batches: the callback reports N steps of
    equal duration, and the last of them has the metrics, with the mean loss of the N batches.
    """

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run
        self._batches, self._sum = 0, 0.0

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        steps = self.params.get("steps")
        self._run.start(steps * self.params["epochs"] if steps else None)

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._batches, self._sum = 0, 0.0

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        metrics = {"train/" + key: value for key, value in (logs or {}).items()}
        # `batch` is the index in the epoch of the last batch of the execution. In the last execution of an epoch, Keras counts
        # batches beyond the end of the data too.
        end = min(batch + 1, self.params.get("steps") or batch + 1)
        count = max(end - self._batches, 1)
        self._batches += count
        if "train/loss" in metrics:
            total = float(metrics["train/loss"]) * self._batches
            metrics["train/loss"], self._sum = (total - self._sum) / count, total
        self._run.steps(count, metrics)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        metrics: dict[str, Any] = {}
        for key, value in (logs or {}).items():
            metrics["eval/" + key[4:] if key.startswith("val_") else "epoch/train_" + key] = value
        self._run.epoch(metrics)
