"""Engine tensorflow/multiworker-mirrored: MultiWorkerMirroredStrategy with Keras 2, with one worker for each rank."""
from scalelab import training
from scalelab.tensorflow_cluster import ClusterEngine
from scalelab.tensorflow_engine import load_tensorflow


class MultiWorkerMirrored(ClusterEngine):
    name = "tensorflow/multiworker-mirrored"

    @staticmethod
    def version():
        import tensorflow as tf

        return f"tensorflow {tf.__version__}"

    def __init__(self, spec, data, rank, ranks, parameters):
        self.join(spec, rank, ranks)
        tf, _ = load_tensorflow(spec)
        self.build(tf, tf.keras, spec, data, rank, parameters, self.strategy(tf, spec))


if __name__ == "__main__":
    training.run(MultiWorkerMirrored)
