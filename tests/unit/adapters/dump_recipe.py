"""Writes the numbers that Python computes from a specification. adapters_recipe_test.cc compares them with those of C++.

Arguments: specification, directory, rank. Each array is written to a file NAME.bin that contains only numbers.
"""
import os
import sys

import numpy as np

import fixture  # noqa: F401
from scalelab import recipe


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
    write("rates", [[recipe.learning_rate(spec, step, run.steps_per_epoch) for step in range(run.total_steps)]])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
