"""Converts the bytes of images to normalised, augmented tensors, as worker/trainer/data/batch.cc does."""
import numpy as np

from . import splitmix

PAD = 4


def normal_values(mean, deviation):
    """Returns the normalised value of each channel and byte as float32 [3, 256]: (byte / 255 - mean) / deviation, rounded as in
    batch.cc."""
    mean, deviation = (np.array(of_channels, np.float32)[:, None] for of_channels in (mean, deviation))
    return (np.arange(256, dtype=np.float32) / np.float32(255) - mean) / deviation


# The mean and the deviation of CIFAR-10's training set.
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
_NORMAL = normal_values(MEAN, DEVIATION)


def draw_crops(seed, epoch, samples):
    """Returns (down, right, flip) of each sample, drawn as in batch.cc. The corner of the crop in the padded image is 0 to 8."""
    # Generators of samples are numbered from 1, because generator 0 draws the order of the epoch.
    numbers = splitmix.draws(splitmix.states(seed, epoch, np.asarray(samples) + 1), 1, 3)
    corners = splitmix.below(numbers[:, :2], 2 * PAD + 1).astype(np.int64)
    return corners[:, 0], corners[:, 1], splitmix.below(numbers[:, 2], 2) == 1


def fill_batch(images, crops=None, layout="NCHW"):
    """Converts bytes [n, 3, side, side] to normalised float32 in `layout`; `crops` is a result of draw_crops, or None.

    The augmentation (He et al. 2015, section 4.2) pads each side with four pixels of zeros after normalisation, crops the image
    at a random position, and flips it.
    """
    n, _, side, _ = images.shape
    pad = 0 if crops is None else PAD
    padded = (np.empty if pad == 0 else np.zeros)((n, 3, side + 2 * pad, side + 2 * pad), np.float32)
    for c in range(3):
        padded[:, c, pad : pad + side, pad : pad + side] = _NORMAL[c][images[:, c]]
    if crops is not None:
        down, right, flip = crops
        windows = np.lib.stride_tricks.sliding_window_view(padded, (side, side), axis=(2, 3))
        padded = windows[np.arange(n), :, down, right]
        padded[flip] = padded[flip][..., ::-1]
    return np.ascontiguousarray(padded.transpose(0, 2, 3, 1)) if layout == "NHWC" else padded
