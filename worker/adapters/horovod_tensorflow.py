"""Engine horovod/tensorflow: Horovod's DistributedGradientTape with Keras 2, with one process for each rank, under an MPI
launcher."""
from scalelab import horovod, training
from scalelab.tensorflow_engine import TensorFlowEngine, load_tensorflow


class HorovodTensorFlow(TensorFlowEngine):
    name = "horovod/tensorflow"
    framework = "horovod"

    @staticmethod
    def version():
        import horovod as package
        import tensorflow as tf

        return f"horovod {package.__version__}, tensorflow {tf.__version__}"

    def __init__(self, spec, data, rank, ranks, parameters):
        tf, _ = load_tensorflow(spec, backends=("mpi", "nccl"))
        self._hvd = horovod.start(spec, "tensorflow", rank, ranks)
        self._compression = getattr(self._hvd.Compression, spec.gradient_compression)
        self.build(tf, tf.keras, spec, data, rank, parameters, tf.distribute.get_strategy())
        self._hvd.broadcast_variables(list(self._variables.values()), root_rank=0)

    def mean_gradients(self, tape, loss, variables):
        tape = self._hvd.DistributedGradientTape(tape, compression=self._compression)
        return tape.gradient(loss, variables)

    def begin_evaluation(self):
        self._hvd.broadcast_variables(self.statistics, root_rank=0)

    def sum_over_ranks(self, numbers):
        total = self._hvd.allreduce(self._tf.constant(numbers, self._tf.float64), op=self._hvd.Sum, name="sum")
        return total.numpy().tolist()

    def close(self):
        self._hvd.shutdown()


if __name__ == "__main__":
    training.run(HorovodTensorFlow)
