"""Engine tensorflow/mirrored: MirroredStrategy with Keras 2, with one process that drives all replicas.

On a CPU each replica is a logical device of TensorFlow, and all replicas share one thread pool.
"""
import numpy as np

from scalelab import training
from scalelab.tensorflow_engine import StrategyEngine, load_tensorflow


class Mirrored(StrategyEngine):
    name = "tensorflow/mirrored"
    one_process = True

    @staticmethod
    def version():
        import tensorflow as tf

        return f"tensorflow {tf.__version__}"

    def __init__(self, spec, data, rank, ranks, parameters):
        self._ranks = ranks
        tf, gpus = load_tensorflow(spec, replicas=ranks)
        reduction = None
        if spec.backend == "nccl":
            reduction = tf.distribute.NcclAllReduce()
        devices = [f"{'GPU' if gpus else 'CPU'}:{i}" for i in range(ranks)]
        self.build(tf, tf.keras, spec, data, rank, parameters, tf.distribute.MirroredStrategy(devices, reduction))

    def distribute(self, array):
        parts = np.array_split(array, self._ranks)
        return self._strategy.experimental_distribute_values_from_function(
            lambda context: self._tf.constant(parts[context.replica_id_in_sync_group])
        )

    def sum_over_ranks(self, numbers):
        return list(numbers)


if __name__ == "__main__":
    training.run(Mirrored)
