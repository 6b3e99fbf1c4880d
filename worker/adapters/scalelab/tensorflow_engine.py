"""Base classes of the engines on TensorFlow. A step runs under tf.function with a gradient tape, on Keras 2 or 3.

A strategy of tf.distribute, or Horovod, averages the gradients. Each replica trains on its part of the batch, and has its own
batch normalisation statistics. TensorFlow exposes only the total time of a step.
"""
import dataclasses
import functools
import os

import numpy as np

from . import array_state, choices, keras_models, loss_scale, splitmix
from .errors import RunError
from .tensorflow_images import Conversion
from .training import Engine, StepResult, importing

# Weight of the auxiliary head's loss, as in torchvision's training.
_AUXILIARY = 0.4


def load_tensorflow(spec, replicas=1, backends=("nccl",)):
    """Imports TensorFlow with the threads, device and precision of the run. Returns (module, GPUs). Must be the first use of
    TensorFlow.

    `replicas` is the number of replicas in this process. Each has spec.cpus_per_rank cores, and on a CPU its own logical device.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with importing(spec.engine):
        import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(spec.cpus_per_rank * replicas)
    tf.config.threading.set_inter_op_parallelism_threads(max(1, replicas))
    gpus = _take_gpus(tf, spec, replicas)
    choices.check(spec, backends, bool(gpus))
    if not gpus and replicas > 1:
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * replicas
        )
    if gpus:
        tf.config.experimental.enable_tensor_float_32_execution(spec.precision == "tf32")
    return tf, gpus


def _take_gpus(tf, spec, replicas):
    wanted = choices.needs_gpu(spec)
    gpus = tf.config.list_physical_devices("GPU") if wanted else []
    local_rank = int(os.environ.get("LOCAL_RANK", "0")) if replicas == 1 else 0
    if wanted and len(gpus) <= local_rank:
        choices.refuse_without_gpu(spec, f"tensorflow {tf.__version__}", len(gpus), local_rank)
    if gpus and replicas == 1:
        gpus = [gpus[local_rank]]
    elif gpus and len(gpus) < replicas:
        raise RunError(f"{replicas} replicas need {replicas} GPUs on one node, this node has {len(gpus)}", "configuration")
    tf.config.set_visible_devices(gpus[:replicas], "GPU")
    return gpus[:replicas]


class TensorFlowEngine(Engine):
    """An engine on TensorFlow. In __init__, a subclass must connect to the other ranks and then call `build`."""

    framework = "tensorflow"
    layout = "NHWC"  # the only layout of TensorFlow's convolutions on a CPU

    def build(self, tf, keras, spec, data, rank, parameters, strategy):
        self._tf, self._strategy, self._spec, self._rank = tf, strategy, spec, rank
        self._gpus = tf.config.get_visible_devices("GPU")
        keras.mixed_precision.set_global_policy(loss_scale.KERAS_POLICIES.get(spec.precision, "float32"))
        if not hasattr(keras, "ops"):
            # By default the operations of Keras 2 keep the state of dropout, and a checkpoint could not contain it.
            keras.backend.experimental.enable_tf_random_generator()
        # Ranks draw different random numbers for dropout. Horovod's ranks are independent for TensorFlow; in a strategy of
        # several replicas, the seeds must be equal when variables are made.
        keras.utils.set_random_seed(splitmix.seed32(spec.seed, rank if strategy.num_replicas_in_sync == 1 else 0))
        with strategy.scope():
            self.network = keras_models.make(keras, spec.model, data.side, data.classes, self.layout)
            self.network.load(parameters)
            # Keras 3 wraps TensorFlow's variables; Keras 2 uses them directly.
            self._variables = {name: getattr(v, "value", v) if hasattr(keras, "ops") else v
                               for name, v in self.network.variables().items()}
            self.statistics = [getattr(v, "value", v) if hasattr(keras, "ops") else v
                               for v in self.network.variables(trainable=False).values()]
            self._velocities = [tf.Variable(tf.zeros(v.shape), trainable=False) for v in self._variables.values()]
            self._spread_seeds()
            self._scaling = None  # loss scale, and number of steps since it last changed
            if spec.precision == "amp-fp16":
                self._scaling = [tf.Variable(first, trainable=False) for first in (loss_scale.FIRST, 0)]
        self._scales = loss_scale.Log()
        self.takes_bytes = self.takes_bytes or bool(self._gpus)
        self._convert = Conversion(tf, data, spec.augment) if self.takes_bytes else None
        self._step = self.in_replicas(self._replica_step)
        self._evaluation = self.in_replicas(self._replica_evaluation, reduce_retracing=True)

    def _spread_seeds(self):
        """Makes the seeds of Keras 3 differ between replicas. The seeds of Keras 2 already differ."""
        for variable in self.network.seeds() if self._strategy.num_replicas_in_sync > 1 else []:
            for i, part in enumerate(self._strategy.experimental_local_results(variable.value)):
                seed, counter = part.numpy().tolist()
                part.assign([splitmix.seed32(seed, self._rank + i), counter])

    def in_replicas(self, function, **options):
        """Returns a tf.function that calls `function` in every replica."""
        return self._tf.function(lambda *args: self._strategy.run(function, args=args), autograph=False, **options)

    def mean_gradients(self, tape, loss, variables):
        """Returns the gradients, averaged over all replicas. Called in each replica."""
        tf = self._tf
        gradients = tape.gradient(loss, variables)
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, gradients)

    def distribute(self, array):
        """Returns the argument of strategy.run for a batch of this process."""
        return self._tf.constant(array)

    def _batch(self, images, labels):
        """Returns the first arguments of _replica_step and _replica_evaluation."""
        if self._convert is not None:
            images = self.distribute(images.pixels), self.distribute(images.crops.astype(np.int64))
        else:
            images = self.distribute(images)
        return images, self.distribute(labels)

    def _replica_step(self, images, labels, rate):
        tf = self._tf
        variables = list(self._variables.values())
        with tf.GradientTape() as tape:
            outputs = self._outputs(images, training=True)
            losses = [tf.reduce_mean(self._cross_entropy(labels, logits)) for logits in outputs]
            loss = losses[0] if len(losses) == 1 else losses[0] + _AUXILIARY * losses[1]
            scaled = loss if self._scaling is None else loss * self._scaling[0]
        gradients = self.mean_gradients(tape, scaled, variables)
        finite = None
        if self._scaling is not None:
            # A value that is not finite on one replica makes the mean not finite, so all replicas make the same decision.
            finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g in gradients])
            gradients = [g / self._scaling[0] for g in gradients]
        # All replicas must change mirrored variables together.
        tf.distribute.get_replica_context().merge_call(self._apply, args=(gradients, rate, finite))
        scale = 0.0 if self._scaling is None else tf.identity(self._scaling[0])
        return loss, self._correct(labels, outputs[0]), scale

    def _apply(self, strategy, gradients, rate, finite):
        tf = self._tf

        def sgd(variable, gradient, velocity, rate, decay, finite):
            momentum = self._spec.momentum
            if decay:
                gradient = gradient + decay * variable
            if finite is not None:  # skip the step without a branch, because a branch would make the device wait
                gradient = tf.where(finite, gradient, 0.0)
                momentum, rate = tf.where(finite, momentum, 1.0), tf.where(finite, rate, 0.0)
            # v = momentum * v + gradient; variable -= rate * v
            tf.raw_ops.ResourceApplyMomentum(
                var=variable.handle, accum=velocity.handle, lr=rate, grad=gradient, momentum=momentum
            )

        for variable, gradient, velocity in zip(self._variables.values(), gradients, self._velocities):
            decays = self._spec.decay_norm or len(variable.shape) > 1
            decay = self._spec.weight_decay if decays else 0.0
            strategy.extended.update(variable, sgd, args=(gradient, velocity, rate, decay, finite))
        if self._scaling is not None:
            strategy.extended.update(self._scaling[0], self._next_scale, args=(self._scaling[1], finite))

    def _next_scale(self, scale, good_steps, finite):
        following = loss_scale.after_step(self._tf.where, scale, good_steps, finite)
        scale.assign(following[0])
        good_steps.assign(following[1])

    def _replica_evaluation(self, images, labels):
        logits = self._outputs(images, training=False)[0]
        return self._tf.reduce_sum(self._cross_entropy(labels, logits)), self._correct(labels, logits)

    def _outputs(self, images, training):
        if self._convert is not None:
            images = self._convert(*images, augment=training)
        outputs = self.network.model(images, training=training)
        outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        return [self._tf.cast(logits, self._tf.float32) for logits in outputs]

    def _cross_entropy(self, labels, logits):
        return self._tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)

    def _correct(self, labels, logits):
        tf = self._tf
        return tf.reduce_sum(tf.cast(tf.equal(tf.argmax(logits, 1), labels), tf.float32))

    def _numbers(self, per_replica):
        return [float(n) for n in self._strategy.experimental_local_results(per_replica)]

    def step(self, images, labels, rate):
        try:
            loss, correct, scale = self._step(*self._batch(images, labels), self._tf.constant(rate, self._tf.float32))
            # On a GPU, reading the numbers would wait for the end of the step.
            return functools.partial(self._result, loss, correct, scale) if self._gpus else self._result(loss, correct, scale)
        except self._tf.errors.OpError as e:
            raise _explained(e) from e

    def _result(self, loss, correct, scale):
        try:
            metrics = {} if self._scaling is None else self._scales.of_step(self._numbers(scale)[0])
            return StepResult(float(np.mean(self._numbers(loss))), sum(self._numbers(correct)), metrics=metrics)
        except self._tf.errors.OpError as e:
            raise _explained(e) from e

    def evaluate(self, images, labels):
        loss, correct = self._evaluation(*self._batch(images, labels))
        return sum(self._numbers(loss)), sum(self._numbers(correct))

    def device_model(self):
        if not self._gpus:
            return super().device_model()
        return self._tf.config.experimental.get_device_details(self._gpus[0]).get("device_name", "GPU")

    def run_metrics(self):
        return {} if self._scaling is None else self._scales.of_run()

    _SHARED = ("trained", "velocities", "scaling")

    def _own_variables(self):
        """Returns the variables of this process that training changes, as a dictionary from the name of a group to a list.
        Each element of the list belongs to one array of a checkpoint. It is the list of the variables with this array's
        value: a variable has one copy for each replica in this process."""
        local = self._strategy.experimental_local_results  # the parts of a variable in this process, one for each replica
        trained = {id(v) for v in self._variables.values()}
        if hasattr(self.network.keras, "ops"):
            values = [getattr(v, "value", v) for v in self.network.model.variables]  # includes the seeds of dropout
        else:
            dropouts = [layer for layer in self.network.model.layers if isinstance(layer, self.network.keras.layers.Dropout)]
            values = [*self.network.model.variables, *(layer._random_generator._generator.state for layer in dropouts)]
        return {
            "trained": [local(v) for v in self._variables.values()],
            "velocities": [local(v) for v in self._velocities],
            "scaling": [local(v) for v in self._scaling or []],
            # Running statistics and seeds of dropout differ between replicas.
            "state": [[part] for v in values if id(v) not in trained for part in local(v)],
        }

    def save(self, directory):
        state = {name: [equal[0].numpy() for equal in own] for name, own in self._own_variables().items()}
        state["scales"] = [np.array(list(dataclasses.asdict(self._scales).values()), np.float64)]
        return array_state.save(state, self._SHARED, directory, self._rank)

    def load(self, directory):
        variables = self._own_variables()
        like = {name: [equal[0] for equal in own] for name, own in variables.items()}
        state = array_state.load({**like, "scales": [np.zeros(2)]}, directory, self._rank)
        for name, own in variables.items():
            for equal, value in zip(own, state[name]):
                for variable in equal:
                    variable.assign(value)
        scale, left_out = state["scales"][0].tolist()
        self._scales = loss_scale.Log(scale, int(left_out))

    def parameters(self):
        tensors = {}
        for variables in (self.network.variables(), self.network.variables(trainable=False)):
            for name, variable in variables.items():
                # Read this process's first replica. If replicas have different values, reading the variable would
                # return their mean.
                value = getattr(variable, "value", variable) if hasattr(self.network.keras, "ops") else variable
                tensors[name] = self.network.to_native(name, self._strategy.experimental_local_results(value)[0].numpy())
        return tensors


def _explained(error):
    """Extracts the message about other ranks, which follows the names of functions in TensorFlow's message."""
    begin = error.message.find("Collective")
    if begin < 0:
        return error
    line = error.message[begin:].splitlines()[0]
    return RunError(f"another rank is gone or late, see the output of all ranks: {line}", "communication")


class StrategyEngine(TensorFlowEngine):
    """Base class of engines with a tf.distribute strategy: one replica in each rank, unless a subclass overrides it."""

    def build(self, tf, keras, spec, data, rank, parameters, strategy):
        super().build(tf, keras, spec, data, rank, parameters, strategy)
        self._sum = self.in_replicas(self._replica_sum, reduce_retracing=True)
        self._take_statistics = self.in_replicas(self._take_first_statistics)

    def sum_over_ranks(self, numbers):
        return self._sum(self._tf.constant(numbers, self._tf.float64)).numpy().tolist()

    def _replica_sum(self, numbers):
        tf = self._tf
        # The argument has no device; tf.identity places it on the device of the replica.
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.identity(numbers))

    def begin_evaluation(self):
        if self.statistics:  # empty in models without batch normalisation; all_reduce does not accept an empty list
            self._take_statistics()

    def _take_first_statistics(self):
        tf = self._tf
        context = tf.distribute.get_replica_context()
        share = tf.cast(tf.equal(context.replica_id_in_sync_group, 0), tf.float32)
        firsts = context.all_reduce(tf.distribute.ReduceOp.SUM, [v * share for v in self.statistics])
        for variable, first in zip(self.statistics, firsts):
            variable.assign(first)
