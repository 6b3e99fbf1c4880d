"""Connects ranks as the workers of a tf.distribute cluster."""
import json
import os

from . import rendezvous


def join(spec, rank, ranks):
    """Sets TF_CONFIG. Must be called before TensorFlow is imported."""
    addresses = rendezvous.meet(os.environ.get("SCALELAB_ATTEMPT_DIR", "."), rank, ranks, spec.comm_timeout_s)
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}})


def strategy(tf, spec):
    """Returns the strategy of this worker. No collective operation takes longer than spec.comm_timeout_s."""
    implementations = tf.distribute.experimental.CommunicationImplementation
    return tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=tf.distribute.experimental.CommunicationOptions(
            implementation=implementations.NCCL if spec.backend == "nccl" else implementations.AUTO,
            timeout_seconds=spec.comm_timeout_s,
        )
    )
