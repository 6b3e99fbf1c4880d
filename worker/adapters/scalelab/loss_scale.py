"""Keeps gradients of float16 in its range (Micikevicius et al. 2018, arXiv 1710.03740), by the rule and with the constants of
torch.amp.GradScaler and of the native engines: the loss is multiplied by a scale and the gradients are divided by it; a step
with a gradient that is not finite is left out by all ranks and halves the scale, 2000 steps in a row without one double it.

PyTorch brings its own; this is for frameworks whose own sits in an optimizer that is not the recipe's.
"""

FIRST = 65536.0
_INTERVAL = 2000  # steps
# Of Keras' layers, by precision of the run: what they compute in, and keep their variables in single precision.
KERAS_POLICIES = {"amp-bf16": "mixed_bfloat16", "amp-fp16": "mixed_float16"}


def after_step(where, scale, good_steps, finite):
    """(scale, steps in a row without a gradient left out) for the next step; `where`: the framework's, on its numbers."""
    good_steps = where(finite, good_steps + 1, 0)
    full = good_steps >= _INTERVAL
    return where(finite, where(full, scale * 2, scale), scale / 2), where(full, 0, good_steps)


class Log:
    """Makes metrics of the scales that follow each step."""

    def __init__(self):
        self._scale, self._left_out = FIRST, 0

    def of_step(self, scale):
        self._left_out += scale < self._scale
        self._scale = scale
        return {"train/loss_scale": scale}

    def of_run(self):
        return {"run/steps_left_out": self._left_out}
