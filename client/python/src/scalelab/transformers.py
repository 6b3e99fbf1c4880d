"""A callback for the Trainer of Hugging Face: `Trainer(..., callbacks=[scalelab.transformers.Callback(run)])` inside
`with scalelab.run() as run`."""
from __future__ import annotations

from typing import Any

import transformers

from scalelab.events import Run


class Callback(transformers.TrainerCallback):
    """Reports each optimizer step with the metrics that the Trainer has logged at this step. With `logging_steps=1`, the Trainer
    logs the loss of every step. Reports each epoch with its evaluation metrics: `eval_accuracy` becomes `eval/accuracy`."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._log_follows = self._evaluation_follows = False
        self._evaluation: dict[str, Any] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._run.start(state.max_steps if state.max_steps > 0 else None)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._log_follows = control.should_log
        if not self._log_follows:
            self._run.step()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if not self._log_follows:
            return
        self._log_follows = False
        self._run.step({"train/" + key: value for key, value in (logs or {}).items() if key != "epoch" and _is_number(value)})

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
        self._evaluation = {"eval/" + key[5:]: value for key, value in (metrics or {}).items() if key.startswith("eval_")}
        self._run.resume()
        if self._evaluation_follows:
            self._report_epoch()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._run.resume()  # the writing of a checkpoint is not part of the next step

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._evaluation_follows = control.should_evaluate
        if not self._evaluation_follows:
            self._report_epoch()

    def _report_epoch(self) -> None:
        self._evaluation_follows = False
        self._run.epoch(self._evaluation)
        self._evaluation = {}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
