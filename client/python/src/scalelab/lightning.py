"""A callback for Lightning: `Trainer(callbacks=[scalelab.lightning.Callback(run)])` inside `with scalelab.run() as run`."""
from __future__ import annotations

import math
from typing import Any

import lightning

from scalelab.events import Run


class Callback(lightning.Callback):
    """Reports each batch as a step, with the loss that `training_step` returned and the logged metrics. Reports each epoch with
    its validation metrics: `val_accuracy` or `val_acc` becomes `eval/accuracy`."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        steps = trainer.estimated_stepping_batches
        self._run.start(int(steps) * trainer.accumulate_grad_batches if math.isfinite(steps) else None)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is not None:
            loss = loss * trainer.accumulate_grad_batches  # Lightning divides the loss by it for the accumulation of gradients
        metrics: dict[str, Any] = {}
        for key, value in trainer.logged_metrics.items():
            if not key.startswith("val"):
                metrics[key if "/" in key else "train/" + (key[6:] if key.startswith("train_") else key)] = value
        self._run.step({**metrics, "train/loss": loss})

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._run.resume()  # a validation within an epoch is not part of the next step

    # Lightning validates before it calls this function.
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        metrics: dict[str, Any] = {}
        for key, value in trainer.callback_metrics.items():
            if key.startswith(("val_", "val/")):
                metrics["eval/accuracy" if key[4:] == "acc" else "eval/" + key[4:]] = value
        self._run.epoch(metrics)
