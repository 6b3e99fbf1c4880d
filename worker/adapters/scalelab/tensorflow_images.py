"""Normalises and augments images in a tf.function, with the results of torch_images.py."""
import numpy as np

from .augment import PAD, normal_values


class Conversion:
    """Converts the pixels and crops of a ByteBatch (image_server.py) to float32 images [n, side, side, 3]. Crops are int64.

    On a GPU, TensorFlow has no tf.gather of bytes, and computes with int32 on the host. Therefore pixels are normalised before they
    are moved, and places are int64."""

    def __init__(self, tf, data, augment):
        """`data` is the ServedData that the batches come from. Without `augment`, crops are not read."""
        self._tf, self._side, self._interleaved, self._augment = tf, data.side, data.interleaved, augment
        self._values = normal_values(data.mean, data.deviation)

    def __call__(self, pixels, crops, augment=True):
        """Returns the images. With `augment` False they are those of an evaluation."""
        tf = self._tf
        # Looks up the values, because Grappler replaces a division by a multiplication, which rounds differently.
        channels = zip(self._values, tf.unstack(pixels, axis=3 if self._interleaved else 1))
        images = tf.stack([tf.gather(values, tf.cast(channel, tf.int32)) for values, channel in channels], axis=3)
        if not (self._augment and augment):
            return images
        down, right, flip = crops[:, 0:1], crops[:, 1:2], crops[:, 2:3]  # tf.unstack would copy them to the host
        place = np.arange(self._side)
        columns = tf.where(flip != 0, self._side - 1 - place, place)
        if not self._interleaved:  # the native trainer has cropped images from files
            images = tf.pad(images, [[0, 0], [PAD, PAD], [PAD, PAD], [0, 0]])
            images = tf.gather(images, down + place, axis=1, batch_dims=1)
            columns += right
        return tf.gather(images, columns, axis=2, batch_dims=1)
