"""Makes an adapter accept the precisions of GPUs on a CPU: run `half_on_cpu.py ADAPTER`, or call change() after importing the
adapter.

This is slow, but the arithmetic is the same. The initial loss scale is 1024, so that no gradient of the test overflows by itself.
If SPOIL_FIRST_STEP is set, the last image of rank 1, or of the last replica, is so bright in the first step that its gradients
overflow.
"""
import os

import changed_adapter


def change():
    from scalelab import choices, loss_scale, training

    choices.check_precision = lambda *_, **__: None
    loss_scale.FIRST = 1024.0
    if "SPOIL_FIRST_STEP" in os.environ:
        run = training.run
        training.run = lambda engine_class: run(spoiled(engine_class))


def spoiled(engine_class):
    """Changes the engine so that its first step overflows. Returns the engine."""
    step = engine_class.step

    def first_step(self, images, *rest):
        if engine_class.one_process or os.environ["RANK"] == "1":
            images[-1] = 1e30
        engine_class.step = step
        return step(self, images, *rest)

    engine_class.step = first_step
    return engine_class


if __name__ == "__main__":
    changed_adapter.main(change)
