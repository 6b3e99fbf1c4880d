"""The recipe's SGD as an optimizer of MXNet. Parameter servers unpickle the optimizer, so this module imports only MXNet."""
import mxnet as mx

from . import recipe


class RecipeSgd(mx.optimizer.Optimizer):
    """Computes v = m * v + g + wd * p; p -= rate * v, where g is the summed gradient times rescale_grad. The k-th update of a key
    is step `first_step` + k, counted from 0.

    Keys below `parameters` are parameters. A push to any other key replaces its value by the sum over the ranks. With this a
    parameter server implements Engine.sum_over_ranks. The value of key `parameters` + k becomes the momentum of parameter k, so
    that ranks can read and replace it.
    """

    def __init__(self, spec, steps_per_epoch, parameters, rescale_grad, first_step=0):
        super().__init__(rescale_grad=rescale_grad)
        self._spec, self._steps_per_epoch, self._parameters = spec, steps_per_epoch, parameters
        self.first_step, self._steps = first_step, {}
        self.momenta = {}  # by key of the parameter; zeros if there is none

    def update(self, index, weight, grad, state):
        if index >= self._parameters:
            weight[:] = grad
            self.momenta[index - self._parameters] = weight  # shares its memory with the value in the store
            return
        step = self._steps.get(index, self.first_step)
        self._steps[index] = step + 1
        if index not in self.momenta:
            self.momenta[index] = mx.nd.zeros(weight.shape, weight.context, dtype=weight.dtype)
        momentum = self.momenta[index]
        gradient = grad * self.rescale_grad
        if self._spec.weight_decay and (self._spec.decay_norm or weight.ndim > 1):
            gradient += self._spec.weight_decay * weight
        momentum *= self._spec.momentum
        momentum += gradient
        weight -= recipe.learning_rate(self._spec, step, self._steps_per_epoch) * momentum
