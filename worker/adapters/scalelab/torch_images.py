"""Normalises and augments images on the device, as worker/trainer/kernels/gpu_images.h does."""
import torch

_PAD = 4


class Conversion:
    """Converts the pixels and crops of a ByteBatch (image_server.py) to float32 images [n, 3, side, side]. All tensors are on
    `device`. Nothing waits for the device."""

    def __init__(self, data, augment, channels_last, device):
        """`data` is the ServedData that the batches come from. Without `augment`, crops are not read."""
        self._interleaved, self._augment, self._channels_last = data.interleaved, augment, channels_last
        # Tensors, because on a GPU PyTorch multiplies by the reciprocal of a Python number instead of dividing.
        self._mean, self._deviation, self._bytes = (
            torch.tensor(values, dtype=torch.float32, device=device) for values in (data.mean, data.deviation, 255.0)
        )

    def __call__(self, pixels, crops, augment=True):
        """Returns the images. With `augment` False they are those of an evaluation."""
        pixels = pixels if self._interleaved else pixels.permute(0, 2, 3, 1).contiguous()
        inside = None
        if self._augment and augment:
            down, right, flip = crops.long().unbind(1)
            if self._interleaved:  # the native trainer has cropped images from files
                pixels = torch.where(flip.view(-1, 1, 1, 1) != 0, pixels.flip(2), pixels)
            else:
                pixels, inside = _shift(pixels, down, right, flip)
        images = (pixels.float() / self._bytes - self._mean) / self._deviation
        if inside is not None:
            images = torch.where(inside, images, torch.zeros((), device=images.device))
        images = images.permute(0, 3, 1, 2)
        return images if self._channels_last else images.contiguous()


def _shift(pixels, down, right, flip):
    """Crops and flips images [n, side, side, 3]. Returns (pixels, inside). `inside` [n, side, side, 1] is False in the border of
    four pixels, which is 0 after normalisation."""
    side, place = pixels.shape[1], torch.arange(pixels.shape[1], device=pixels.device)
    rows = place + (down[:, None] - _PAD)
    columns = torch.where(flip[:, None] != 0, side - 1 - place, place) + (right[:, None] - _PAD)
    inside = ((rows >= 0) & (rows < side))[:, :, None] & ((columns >= 0) & (columns < side))[:, None, :]
    each = torch.arange(len(pixels), device=pixels.device)[:, None, None]
    return pixels[each, rows.clamp(0, side - 1)[:, :, None], columns.clamp(0, side - 1)[:, None, :]], inside[..., None]
