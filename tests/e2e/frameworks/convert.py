"""The part of bytes_test.py that runs in the environment of a framework: `convert.py KIND`, where KIND is tensorflow or jax.

Converts bytes with the framework, in a compiled function, and compares the images with those of augment.py, bit for bit. If
TensorFlow was built for GPUs, also checks that a GPU can execute the conversion alone. No GPU is needed.
"""
import os
import sys
import types

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "worker", "adapters"))
from scalelab import augment  # noqa: E402

SIDE, COUNT = 37, 24


def compiled(kind, data, augments):
    """Returns the conversion as a function (pixels, crops, augment) of arrays."""
    if kind == "jax":
        import jax

        from scalelab.jax_images import Conversion

        return jax.jit(Conversion(jax.numpy, data, augments), static_argnums=2)
    import tensorflow as tf

    from scalelab.tensorflow_images import Conversion

    function = tf.function(Conversion(tf, data, augments), autograph=False)
    check_kernels(tf, function, data)
    return lambda pixels, crops, training: function(tf.constant(pixels), tf.constant(crops.astype(np.int64)), training)


def check_kernels(tf, function, data):
    """Checks that each operation has a kernel for GPUs whose inputs and outputs are in the memory of the GPU, except constants such
    as axes. TensorFlow would otherwise copy images to the host in each step."""
    from tensorflow.python.framework import kernels

    if not tf.test.is_built_with_cuda():
        return
    shape = (COUNT, SIDE, SIDE, 3) if data.interleaved else (COUNT, 3, SIDE, SIDE)
    graph = function.get_concrete_function(tf.TensorSpec(shape, tf.uint8), tf.TensorSpec((COUNT, 3), tf.int64)).graph
    for node in graph.as_graph_def().node:
        if node.op in ("Const", "Placeholder"):
            continue
        in_host_memory = [
            set(kernel.host_memory_arg)
            for kernel in kernels.get_registered_kernels_for_op(node.op).kernel
            if kernel.device_type == "GPU"
            and all(node.attr[limit.name].type in limit.allowed_values.list.type for limit in kernel.constraint)
        ]
        assert in_host_memory, f"{node.op} has no kernel for GPUs: {node.attr}"
        copied = min(in_host_memory, key=len) - {"axis", "begin", "end", "strides", "paddings"}
        assert not copied, f"{node.op} copies {copied} between the GPU and the host: {node.attr}"


def main(kind):
    random = np.random.default_rng(1)
    planar = random.integers(0, 256, (COUNT, 3, SIDE, SIDE), np.uint8)
    down, right, flip = augment.draw_crops(5, 2, np.arange(COUNT))
    middle = np.full(COUNT, augment.PAD)  # the trainer has cropped interleaved images
    for interleaved in (False, True):
        data = types.SimpleNamespace(side=SIDE, interleaved=interleaved, mean=augment.MEAN, deviation=augment.DEVIATION)
        pixels = np.ascontiguousarray(planar.transpose(0, 2, 3, 1)) if interleaved else planar
        crops = (middle, middle, flip) if interleaved else (down, right, flip)
        for augments, training in ((True, True), (True, False), (False, True)):
            made = compiled(kind, data, augments)(pixels, np.stack((down, right, flip), axis=1).astype(np.int32), training)
            expected = augment.fill_batch(planar, crops if augments and training else None, "NHWC")
            np.testing.assert_array_equal(np.asarray(made), expected, strict=True)


if __name__ == "__main__":
    main(sys.argv[1])
