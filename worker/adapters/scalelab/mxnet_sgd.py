"""The recipe's SGD as an optimizer of MXNet. Parameter servers unpickle it, so it imports little."""
import mxnet as mx

from . import recipe


class RecipeSgd(mx.optimizer.Optimizer):
    """v = m * v + g + wd * p; p -= rate * v, where g is the summed gradient times rescale_grad; a key's k-th update is step k.

    `sums` is the first key that is no parameter. The values of this key and later keys become the sum over the ranks, which
    implements Engine.sum_over_ranks.
    """

    def __init__(self, spec, steps_per_epoch, sums, rescale_grad):
        super().__init__(rescale_grad=rescale_grad)
        self._spec, self._steps_per_epoch, self._sums = spec, steps_per_epoch, sums
        self._steps = {}

    def create_state(self, index, weight):
        return None if index >= self._sums else mx.nd.zeros(weight.shape, weight.context, dtype=weight.dtype)

    def update(self, index, weight, grad, state):
        if index >= self._sums:
            weight[:] = grad
            return
        step = self._steps.get(index, 0)
        self._steps[index] = step + 1
        gradient = grad * self.rescale_grad
        if self._spec.weight_decay and (self._spec.decay_norm or weight.ndim > 1):
            gradient += self._spec.weight_decay * weight
        state *= self._spec.momentum
        state += gradient
        weight -= recipe.learning_rate(self._spec, step, self._steps_per_epoch) * state
