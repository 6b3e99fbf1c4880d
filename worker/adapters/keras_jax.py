"""Engine keras/jax: Keras 3 on JAX with Keras' DataParallel distribution, with one process for each rank.

Keras lays out the variables over the mesh of all ranks. By default XLA treats the batches of all ranks as one batch, and batch
normalisation computes its statistics over all of them. This engine maps the step over the shards of the mesh instead: each rank
normalises by the statistics of its own batch, and only the gradients are averaged.
"""
import dataclasses
import importlib.util
import os

import numpy as np

from scalelab import array_state, choices, keras_models, loss_scale, rendezvous, splitmix, training
from scalelab.deadline import Deadline
from scalelab.errors import RunError
from scalelab.jax_images import Conversion

# Weight of the auxiliary head's loss, as in torchvision's training.
_AUXILIARY = 0.4


class KerasJax(training.Engine):
    name = "keras/jax"
    framework = "keras"
    layout = "NHWC"

    @staticmethod
    def version():
        import jax
        import keras

        return f"keras {keras.__version__}, jax {jax.__version__}"

    def __init__(self, spec, data, rank, ranks, parameters):
        self._spec, self._rank, self._ranks = spec, rank, ranks
        self._jax = jax = _join(spec, rank, ranks)
        device = jax.local_devices()[0]
        self._gpu = device.device_kind if device.platform == "gpu" else None
        self.takes_bytes = self.takes_bytes or self._gpu is not None
        self._convert = Conversion(jax.numpy, data, spec.augment) if self.takes_bytes else None
        with training.importing(self.name):
            import keras

        keras.mixed_precision.set_global_policy(loss_scale.KERAS_POLICIES.get(spec.precision, "float32"))
        keras.utils.set_random_seed(splitmix.seed32(spec.seed))
        with Deadline(spec.comm_timeout_s, ranks)("building the model on all ranks"):
            devices = keras.distribution.list_devices()
            distribution = keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False)
            keras.distribution.set_distribution(distribution)
            self._network = keras_models.make(keras, spec.model, data.side, data.classes, self.layout)
            self._network.load(parameters)
            self._mesh = distribution.device_mesh.backend_mesh
            self._batch = jax.sharding.PartitionSpec(distribution.batch_dim_name)
        self._model = self._network.model
        self._lay_out(jax)
        self._compile(jax, data)

    def _lay_out(self, jax):
        model = self._model
        self._trained = [v.value for v in model.trainable_variables]
        self._velocities = [jax.numpy.zeros_like(v) for v in self._trained]
        self._decays = [self._spec.weight_decay if self._spec.decay_norm or v.ndim > 1 else 0.0 for v in self._trained]
        # Loss scale, and the number of steps since it last changed; empty without loss scaling.
        scaled = self._spec.precision == "amp-fp16"
        self._scaling = [jax.numpy.float32(loss_scale.FIRST), jax.numpy.int32(0)] if scaled else []
        self._scales = loss_scale.Log()
        # Running statistics and dropout seeds differ between ranks, so their first axis runs over the ranks.
        state = [_local(v.value) for v in model.non_trainable_variables]
        self._state = [self._spread((s + self._rank if s.dtype.kind == "u" else s)[None]) for s in state]

    def _compile(self, jax, data):
        # Compiles before the first step, because other ranks wait in that step and compile times differ between ranks.
        same, own = jax.sharding.PartitionSpec(), self._batch
        step = jax.shard_map(
            self._shard_step,
            mesh=self._mesh,
            in_specs=(same, same, own, same, own, own, same),
            out_specs=(same, same, own, same, own, own),
            check_vma=False,
        )
        batch = self._spec.batch_per_rank
        self._step = (
            jax.jit(step, donate_argnums=(0, 1, 2))
            .lower(
                self._trained,
                self._velocities,
                self._state,
                self._scaling,
                jax.tree.map(self._spread, self._zeros(data)),
                self._spread(np.zeros(batch, np.int32)),
                np.float32(0),
            )
            .compile()
        )
        self._evaluation = jax.jit(self._evaluate)

    def _zeros(self, data):
        """Returns a batch of zeros, with the types and shapes of _arrays."""
        batch, side = self._spec.batch_per_rank, data.side
        if self._convert is None:
            return np.zeros((batch, side, side, 3), np.float32)
        shape = (batch, side, side, 3) if data.interleaved else (batch, 3, side, side)
        return np.zeros(shape, np.uint8), np.zeros((batch, 3), np.int32)

    def _arrays(self, images):
        """Returns images as an argument of the compiled functions."""
        return images if self._convert is None else (images.pixels, images.crops)

    def _spread(self, local):
        """Returns an array that is sharded over all ranks; `local` is the shard of this rank."""
        sharding = self._jax.sharding.NamedSharding(self._mesh, self._batch)
        return self._jax.make_array_from_process_local_data(sharding, local)

    def _shard_step(self, trained, velocities, state, scaling, images, labels, rate):
        jax, where = self._jax, self._jax.numpy.where
        scale = scaling[0] if scaling else 1
        if self._convert is not None:
            images = self._convert(*images)

        def loss_of(trained):
            outputs, new_state = self._model.stateless_call(trained, [s[0] for s in state], images, training=True)
            outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
            losses = [self._cross_entropy(logits, labels).mean() for logits in outputs]
            loss = losses[0] if len(losses) == 1 else losses[0] + _AUXILIARY * losses[1]
            return loss * scale, (loss, self._correct(outputs[0], labels), new_state)

        (_, (loss, correct, new_state)), gradients = jax.value_and_grad(loss_of, has_aux=True)(trained)
        gradients = jax.lax.pmean(gradients, self._batch[0])
        before = trained, velocities
        if scaling:
            # A value that is not finite on one rank makes the mean not finite, so all ranks make the same decision.
            finite = jax.numpy.stack([jax.numpy.isfinite(g).all() for g in gradients]).all()
            gradients = [g / scale for g in gradients]
            scaling = list(loss_scale.after_step(where, *scaling, finite))
        velocities = [
            self._spec.momentum * v + g + decay * p for v, g, p, decay in zip(velocities, gradients, trained, self._decays)
        ]
        trained = [p - rate * v for p, v in zip(trained, velocities)]
        if scaling:
            trained, velocities = ([where(finite, n, o) for n, o in zip(*pair)] for pair in zip((trained, velocities), before))
        return trained, velocities, [s[None] for s in new_state], scaling, loss[None], correct[None]

    def _cross_entropy(self, logits, labels):
        logits = logits.astype("float32")
        picked = self._jax.numpy.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
        return self._jax.nn.logsumexp(logits, axis=1) - picked

    def _correct(self, logits, labels):
        return (logits.argmax(axis=1) == labels).sum().astype("float32")

    def step(self, images, labels, rate):
        batch = self._jax.tree.map(self._spread, (self._arrays(images), labels.astype(np.int32)))
        self._trained, self._velocities, self._state, self._scaling, loss, correct = self._step(
            self._trained, self._velocities, self._state, self._scaling, *batch, np.float32(rate)
        )
        scale = self._scaling[0] if self._scaling else None

        def result():
            metrics = {} if scale is None else self._scales.of_step(float(_local(scale)))
            return training.StepResult(float(_local(loss)[0]), float(_local(correct)[0]), metrics=metrics)

        # On a GPU, reading the numbers would wait for the end of the step.
        return result if self._gpu is not None else result()

    _SHARED = ("trained", "velocities", "scaling")

    def _own_state(self):
        arrays = {"trained": self._trained, "velocities": self._velocities, "scaling": self._scaling, "state": self._state}
        state = {name: [_local(a) for a in of_name] for name, of_name in arrays.items()}
        return {**state, "scales": [np.array(list(dataclasses.asdict(self._scales).values()), np.float64)]}

    def save(self, directory):
        return array_state.save(self._own_state(), self._SHARED, directory, self._rank)

    def load(self, directory):
        state = array_state.load(self._own_state(), directory, self._rank)
        for name in self._SHARED:
            arrays = zip(getattr(self, f"_{name}"), state[name])
            setattr(self, f"_{name}", [self._like(old, value) for old, value in arrays])
        self._state = [self._spread(value) for value in state["state"]]
        scale, left_out = state["scales"][0].tolist()
        self._scales = loss_scale.Log(scale, int(left_out))

    def _like(self, old, value):
        """Returns an array with this value on all ranks. It has the placement of `old`."""
        if not hasattr(old, "sharding"):
            return value
        return self._jax.make_array_from_callback(old.shape, old.sharding, lambda index: value[index])

    def device_model(self):
        return self._gpu or super().device_model()

    def run_metrics(self):
        return self._scales.of_run() if self._scaling else {}

    def _evaluate(self, trained, state, images, labels):
        if self._convert is not None:
            images = self._convert(*images, augment=False)
        outputs, _ = self._model.stateless_call(trained, state, images, training=False)
        logits = outputs[0] if isinstance(outputs, (list, tuple)) else outputs
        return self._cross_entropy(logits, labels).sum(), self._correct(logits, labels)

    def begin_evaluation(self):
        from jax.experimental import multihost_utils

        own = [_local(s) for s in self._state]
        first = multihost_utils.broadcast_one_to_all(own) if self._ranks > 1 else own
        self._state = [self._spread(o if o.dtype.kind == "u" else np.asarray(f)) for o, f in zip(own, first)]

    def evaluate(self, images, labels):
        # Evaluate on this rank's device only, because ranks may have different numbers of images.
        trained, state = [v.addressable_data(0) for v in self._trained], [s.addressable_data(0)[0] for s in self._state]
        loss, correct = self._evaluation(trained, state, self._arrays(images), labels.astype(np.int32))
        return float(loss), float(correct)

    def sum_over_ranks(self, numbers):
        from jax.experimental import multihost_utils

        if self._ranks == 1:
            return list(numbers)
        # The numbers are sent as bytes, because JAX would convert them to single precision.
        gathered = multihost_utils.process_allgather(np.frombuffer(np.array(numbers, np.float64).tobytes(), np.uint8))
        return np.frombuffer(np.asarray(gathered).tobytes(), np.float64).reshape(self._ranks, -1).sum(axis=0).tolist()

    def parameters(self):
        state = [s.addressable_data(0)[0] for s in self._state]
        values = dict(zip(map(id, self._model.trainable_variables), (v.addressable_data(0) for v in self._trained)))
        values.update(zip(map(id, self._model.non_trainable_variables), state))
        variables = {**self._network.variables(), **self._network.variables(trainable=False)}
        return {name: self._network.to_native(name, values[id(v)]) for name, v in variables.items()}


def _join(spec, rank, ranks):
    """Imports JAX with this rank's threads and device, and connects it to the other ranks."""
    os.environ["KERAS_BACKEND"] = "jax"
    spec.set_variables(NPROC=str(spec.cpus_per_rank))  # threads of XLA's pools
    cuda, local_rank = choices.needs_gpu(spec), int(os.environ.get("LOCAL_RANK", "0"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if cuda and not any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13)):
        choices.refuse_without_gpu(spec, "jax without a plugin for CUDA", 0)
    if cuda and visible is not None and len([gpu for gpu in visible.split(",") if gpu]) <= local_rank:
        choices.refuse_without_gpu(spec, f'jax with CUDA_VISIBLE_DEVICES "{visible}"', len(visible.split(",")), local_rank)
    choices.check(spec, ("nccl",) if cuda else ("gloo",), cuda)
    with training.importing("keras/jax"):
        import jax

    jax.config.update("jax_platforms", "cuda" if cuda else "cpu")
    jax.config.update("jax_default_matmul_precision", "tensorfloat32" if spec.precision == "tf32" else "highest")
    if cuda:
        # By default a process uses all GPUs that it sees. A run of one rank would distribute its batch over them.
        jax.config.update("jax_cuda_visible_devices", str(local_rank))
    if ranks > 1:
        if not cuda:
            jax.config.update("jax_cpu_collectives_implementation", "gloo")
        addresses = rendezvous.meet(os.environ.get("SCALELAB_ATTEMPT_DIR", "."), rank, ranks, spec.comm_timeout_s)
        jax.distributed.initialize(
            addresses[0],
            ranks,
            rank,
            local_device_ids=[local_rank if cuda else 0],
            initialization_timeout=max(1, int(spec.comm_timeout_s)),
        )
    try:
        jax.local_devices()
    except RuntimeError as e:
        if not cuda:
            raise
        raise RunError(f"jax {jax.__version__} cannot use GPU {local_rank} here: {e}", "configuration") from e
    return jax


def _local(array):
    if not hasattr(array, "addressable_data"):
        return np.asarray(array)
    return np.asarray(array.addressable_data(0))


if __name__ == "__main__":
    training.run(KerasJax)
