"""Connects ranks as the workers of a tf.distribute cluster."""
import json
import os

from . import rendezvous
from .tensorflow_engine import StrategyEngine


class ClusterEngine(StrategyEngine):
    """Base class of engines whose ranks are the workers of a cluster."""

    def join(self, spec, rank, ranks):
        """Sets TF_CONFIG. Must be called before TensorFlow is imported."""
        self._directory, self._timeout_s = os.environ.get("SCALELAB_ATTEMPT_DIR", "."), spec.comm_timeout_s
        self._rank, self._ranks = rank, ranks
        addresses = rendezvous.meet(self._directory, rank, ranks, self._timeout_s)
        os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}})

    def strategy(self, tf, spec):
        """Returns the strategy of this worker. No collective operation takes longer than spec.comm_timeout_s."""
        implementations = tf.distribute.experimental.CommunicationImplementation
        return tf.distribute.MultiWorkerMirroredStrategy(
            communication_options=tf.distribute.experimental.CommunicationOptions(
                implementation=implementations.NCCL if spec.backend == "nccl" else implementations.AUTO,
                timeout_seconds=spec.comm_timeout_s,
            )
        )

    def close(self):
        # In an all-reduce, workers fetch the parts from each other. A worker must not leave before all others have their results.
        rendezvous.exchange(self._directory, "leave", self._rank, self._ranks, "", self._timeout_s)
