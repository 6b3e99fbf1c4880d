"""A callback for Lightning: `Trainer(callbacks=[scalelab.lightning.Callback(run)])` inside `with scalelab.run() as run`."""
from __future__ import annotations

import math
from typing import Any

import lightning

from scalelab.events import Run


class Callback(lightning.Callback):
    """Reports each step of the optimizer with the loss that `training_step` returned and the logged metrics. With
    `accumulate_grad_batches=N`, a step has N batches, and its loss is their mean. Reports each epoch with its validation metrics:
    `val_accuracy` or `val_acc` becomes `eval/accuracy`."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._losses: list[Any] = []  # of the batches since the last step

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        steps = trainer.estimated_stepping_batches
        self._run.start(int(steps) if math.isfinite(steps) and steps > 0 else None)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is not None:
            # Lightning divides the loss by this number for the accumulation of gradients.
            self._losses.append(loss * trainer.accumulate_grad_batches)
        if (batch_idx + 1) % trainer.accumulate_grad_batches != 0 and not trainer.is_last_batch:
            return  # the gradients of this batch become part of a later step
        metrics: dict[str, Any] = {}
        for key, value in trainer.logged_metrics.items():
            if not key.startswith("val"):
                metrics[key if "/" in key else "train/" + (key[6:] if key.startswith("train_") else key)] = value
        self._run.step({**metrics, "train/loss": sum(self._losses) / len(self._losses) if self._losses else None})
        self._losses = []

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._run.pause()  # a step may have batches before and after a validation

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._run.resume()  # a validation within an epoch is not part of a step

    # Lightning validates before it calls this function.
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        metrics: dict[str, Any] = {}
        for key, value in trainer.callback_metrics.items():
            if key.startswith(("val_", "val/")):
                metrics["eval/accuracy" if key[4:] == "acc" else "eval/" + key[4:]] = value
        self._run.epoch(metrics)
