"""Normalises and augments images in a function that JAX compiles, with the results of torch_images.py."""
from .augment import PAD, normal_values


class Conversion:
    """Converts the pixels and crops of a ByteBatch (image_server.py) to float32 images [n, side, side, 3]."""

    def __init__(self, numpy, data, augment):
        """`numpy` is jax.numpy, or numpy in tests. `data` is the ServedData that the batches come from. Without `augment`, crops
        are not read."""
        self._numpy, self._side, self._interleaved, self._augment = numpy, data.side, data.interleaved, augment
        self._values = normal_values(data.mean, data.deviation)

    def __call__(self, pixels, crops, augment=True):
        """Returns the images. With `augment` False they are those of an evaluation."""
        np = self._numpy
        pixels = (pixels if self._interleaved else pixels.transpose(0, 2, 3, 1)).astype("int32")
        # Looks up the values, because XLA may round an expression differently than numpy.
        images = np.asarray(self._values)[np.arange(3), pixels]
        if not (self._augment and augment):
            return images
        down, right, flip = crops.T[:, :, None]
        place = np.arange(self._side)
        rows, columns = place[None], np.where(flip != 0, self._side - 1 - place, place)
        if not self._interleaved:  # the native trainer has cropped images from files
            images = np.pad(images, ((0, 0), (PAD, PAD), (PAD, PAD), (0, 0)))
            rows, columns = rows + down, columns + right
        return images[np.arange(len(images))[:, None, None], rows[:, :, None], columns[:, None, :]]
