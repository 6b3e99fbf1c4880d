"""Engine keras/tensorflow: Keras 3 on TensorFlow under MultiWorkerMirroredStrategy.

Keras' DataParallel does nothing on this backend, and its fit() does not work under this strategy, so this engine uses the
training loop of the adapters.
"""
import os

from scalelab import training
from scalelab.tensorflow_cluster import ClusterEngine
from scalelab.tensorflow_engine import load_tensorflow


class KerasTensorFlow(ClusterEngine):
    name = "keras/tensorflow"
    framework = "keras"

    @staticmethod
    def version():
        import keras
        import tensorflow as tf

        return f"keras {keras.__version__}, tensorflow {tf.__version__}"

    def __init__(self, spec, data, rank, ranks, parameters):
        os.environ["KERAS_BACKEND"] = "tensorflow"
        self.join(spec, rank, ranks)
        tf, _ = load_tensorflow(spec)
        strategy = self.strategy(tf, spec)
        with training.importing(self.name):
            import keras

        self.build(tf, keras, spec, data, rank, parameters, strategy)


if __name__ == "__main__":
    training.run(KerasTensorFlow)
