"""Base class of the engines on MXNet: a Gluon model and its step. A subclass averages the gradients over ranks."""

import faulthandler

import numpy as np

from . import array_state, choices, splitmix
from .errors import RunError
from .training import Engine, StepResult, importing


def load_mxnet(spec, backends=()):
    """Imports MXNet with this rank's threads. The DMLC_* environment variables must be set before."""
    choices.check(spec, backends, gpu=False, precisions=("fp32", "amp-bf16"))
    if choices.needs_gpu(spec):
        raise RunError(
            f'engine {spec.engine} trains on CPUs: set device to "cpu", or remove gpus_per_rank', "configuration"
        )
    # Each of MXNet's workers uses the threads of OpenMP.
    spec.set_variables(OMP_NUM_THREADS=str(spec.cpus_per_rank), MXNET_CPU_WORKER_NTHREADS="1")
    with importing(spec.engine):
        import mxnet
    # MXNet's own signal handler hides the place of a crash: it calls exit, and then other threads crash too.
    faulthandler.disable()
    faulthandler.enable()

    if spec.precision == "amp-bf16":
        # amp.init replaces MXNet's operators, so call it once, before the model is built.
        from mxnet.contrib import amp

        amp.init("bfloat16")
        _check_bf16(mxnet)
    return mxnet


def _check_bf16(mx):
    some = mx.nd.zeros((1, 1, 3, 3))
    try:
        mx.nd.Convolution(some, some, kernel=(3, 3), num_filter=1, no_bias=True).wait_to_read()
    except mx.MXNetError as e:
        message = "MXNet supports bfloat16 only on processors with AVX-512, which this node does not have: use precision fp32"
        raise RunError(message, "configuration") from e


class MxnetEngine(Engine):
    framework = "mxnet"
    layout = "NCHW"

    @staticmethod
    def version():
        import mxnet

        return f"mxnet {mxnet.__version__}"

    def build(self, mx, spec, data, rank, parameters):
        from . import models_mxnet

        self._mx, self._rank = mx, rank
        self._steps = 0  # steps of the run until now
        mx.random.seed(splitmix.seed32(spec.seed, rank))
        try:
            self._net = models_mxnet.make(spec.model, data.classes)
        except ValueError as e:
            raise RunError(str(e), "configuration") from e
        self._net.load(parameters, mx.cpu())
        self._net.hybridize(static_alloc=True, static_shape=True)
        self._cross_entropy = mx.gluon.loss.SoftmaxCrossEntropyLoss()
        slots = self._net.slots
        self.trained = {name: p for name, p in slots.items() if p.grad_req != "null"}
        self.statistics = {name: p for name, p in slots.items() if p.grad_req == "null"}
        self.steps_per_epoch = len(data.train_labels) // spec.global_batch

    def update(self):
        """Updates `trained` with the mean gradient over ranks."""
        raise NotImplementedError

    def momenta(self):
        """Returns the momentum of each parameter as a numpy array, in the order of `trained`. Only rank 0 calls it."""
        raise NotImplementedError

    def continue_after(self, steps, momenta):
        """Sets the state of the optimizer to that after `steps` steps. `trained` already has its values."""
        raise NotImplementedError

    def step(self, images, labels, rate):
        # `rate` is unused: the optimizer (RecipeSgd) computes it from the number of the step.
        mx = self._mx
        with mx.autograd.record():
            logits = self._logits(images)
            loss = self._cross_entropy(logits, mx.nd.array(labels)).mean()
        loss.backward()
        self.update()
        correct = (logits.asnumpy().argmax(axis=1) == labels).sum()
        mx.nd.waitall()
        self._steps += 1
        return StepResult(float(loss.asscalar()), float(correct))

    def _logits(self, images):
        return self._mx.nd.amp_cast(self._net(self._mx.nd.array(images)), dtype="float32")

    def evaluate(self, images, labels):
        logits = self._logits(images)
        loss = self._cross_entropy(logits, self._mx.nd.array(labels)).sum()
        return float(loss.asscalar()), float((logits.asnumpy().argmax(axis=1) == labels).sum())

    _SHARED = ("trained", "momenta", "steps")

    def save(self, directory):
        # The models have no dropout, so there are no random numbers to store.
        state = {"statistics": [p.data().asnumpy() for p in self.statistics.values()]}
        if self._rank == 0:
            state["trained"] = [p.data().asnumpy() for p in self.trained.values()]
            state["momenta"] = self.momenta()
            state["steps"] = [np.array(self._steps, np.int64)]
        return array_state.save(state, self._SHARED, directory, self._rank)

    def load(self, directory):
        trained, statistics = list(self.trained.values()), list(self.statistics.values())
        like = {"trained": trained, "momenta": trained, "statistics": statistics, "steps": [np.array(0)]}
        state = array_state.load(like, directory, self._rank)
        for parameter, value in zip([*trained, *statistics], [*state["trained"], *state["statistics"]]):
            parameter.set_data(self._mx.nd.array(value))
        self._steps = int(state["steps"][0])
        self.continue_after(self._steps, state["momenta"])

    def parameters(self):
        return {name: np.ascontiguousarray(p.data().asnumpy()) for name, p in self._net.slots.items()}
