"""Writes the numbers that Python computes from a specification. adapters_recipe_test.cc compares them with those of C++.

Arguments: specification, directory, rank. Each array is written to a file NAME.bin that contains only numbers.
"""
import os
import sys

import numpy as np
import torch

import fixture  # noqa: F401
from scalelab import jax_images, recipe
from scalelab.image_server import ServedData
from scalelab.torch_images import Conversion


def main(path, directory, rank):
    def write(name, arrays):
        np.concatenate([np.asarray(a).reshape(-1) for a in arrays]).tofile(os.path.join(directory, name + ".bin"))

    spec = recipe.Spec.read(path)
    data = recipe.load_data(spec)
    write("train_labels", [data.train_labels])
    write("test_labels", [data.test_labels])
    write("test", [data.test_batch(slice(None), "NCHW")] if len(data.test_labels) else [[]])
    for layout in ("NCHW", "NHWC"):
        run = recipe.Batches(spec, data, rank, spec.ranks, layout)
        batches = list(run)
        write(layout, [images for images, _ in batches])
        write("labels", [labels for _, labels in batches])
    # The path of runs on GPUs, on the CPU.
    served = ServedData(spec)

    def images_of(batch, last, augment):
        made = Conversion(served, spec.augment, last, "cpu")(torch.from_numpy(batch.pixels), torch.from_numpy(batch.crops), augment)
        assert made.is_contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
        if last:  # the conversion for JAX also runs with numpy
            same = jax_images.Conversion(np, served, spec.augment)(batch.pixels, batch.crops, augment)
            np.testing.assert_array_equal(same, made.permute(0, 2, 3, 1).numpy())
        return (made.permute(0, 2, 3, 1) if last else made).numpy()

    for layout in ("NCHW", "NHWC"):
        batches = recipe.Batches(spec, served, rank, spec.ranks, "BYTES")
        write("bytes_" + layout, [images_of(images, layout == "NHWC", True) for images, _ in batches])
    test = served.test_batch(slice(None), "BYTES") if len(served.test_labels) else None
    write("bytes_test", [[] if test is None else images_of(test, False, False)])
    write("rates", [[recipe.learning_rate(spec, step, run.steps_per_epoch) for step in range(run.total_steps)]])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
