"""Dynamic loss scaling for float16 gradients (Micikevicius et al. 2018, arXiv 1710.03740).

Uses the rule and the constants of torch.amp.GradScaler and of the native engines. The loss is multiplied by a scale, and the
gradients are divided by it. If a gradient is not finite, all ranks skip the step and halve the scale. After 2000 consecutive
steps without such a gradient, the scale is doubled. The PyTorch engines use GradScaler. The other frameworks have loss scaling
only in their optimizers, which the recipe does not use.
"""
import dataclasses

FIRST = 65536.0
_INTERVAL = 2000  # steps
# Maps precisions of the run to policies of Keras' layers. A policy sets the type of computations; variables
# have single precision.
KERAS_POLICIES = {"amp-bf16": "mixed_bfloat16", "amp-fp16": "mixed_float16"}


def after_step(where, scale, good_steps, finite):
    """Returns (scale, number of consecutive steps with finite gradients) for the next step. `where` is the framework's function
    `where`."""
    good_steps = where(finite, good_steps + 1, 0)
    full = good_steps >= _INTERVAL
    return where(finite, where(full, scale * 2, scale), scale / 2), where(full, 0, good_steps)


@dataclasses.dataclass
class Log:
    """Computes metrics from the scale after each step."""

    scale: float = dataclasses.field(default_factory=lambda: FIRST)
    left_out: int = 0  # number of skipped steps

    def of_step(self, scale):
        self.left_out += scale < self.scale
        self.scale = scale
        return {"train/loss_scale": scale}

    def of_run(self):
        return {"run/steps_left_out": self.left_out}
