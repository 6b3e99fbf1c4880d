"""Compares the batches that the native trainer prepares for runs on GPUs with the batches that numpy prepares for runs on
CPUs."""
import json
import os
import tempfile
import unittest

import numpy as np
import run

from scalelab.image_server import ServedData


class ServedImages(unittest.TestCase):
    def batches(self, directory, layout, load, **fields):
        path = os.path.join(directory, "spec.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(run.fields("pytorch/ddp", 2, {"max_steps": "3", "evaluate": True, **fields}), file)
        spec = run.recipe.Spec.read(path)
        data = load(spec)
        tests = data.test_batch(slice(0, 40), layout)
        return (data.side, data.classes), [(tests, data.test_labels[:40]), *run.recipe.Batches(spec, data, 1, 2, layout)]

    def test_both_are_the_same_bytes(self):
        os.environ["SCALELAB_TRAINER"] = run.trainer()
        cases = [{}, {"augment": False}, {"dataset": "synthetic", "train_samples": "300"},
                 {"dataset": "synthetic", "image_size": 48, "classes": 7, "train_samples": "200", "augment": True}]
        for fields in cases:
            for layout in ("NCHW", "NHWC"):
                with self.subTest(fields=fields, layout=layout), tempfile.TemporaryDirectory() as directory:
                    shape, numpys = self.batches(directory, layout, run.recipe.load_data, **fields)
                    served_shape, served = self.batches(directory, layout, run.recipe.load_data, gpus_per_rank=1, **fields)
                    self.assertEqual(served_shape, shape)
                    self.assertEqual(len(served), len(numpys))
                    for ours, theirs in zip(numpys, served):
                        for one, other in zip(ours, theirs):
                            np.testing.assert_array_equal(other, one)

    def test_runs_on_gpus_get_them_from_the_trainer(self):
        os.environ["SCALELAB_TRAINER"] = run.trainer()
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "spec.json")
            for more, served in (({}, False), ({"gpus_per_rank": 1}, True), ({"gpus_per_rank": 1, "device": "cpu"}, False)):
                with open(path, "w", encoding="utf-8") as file:
                    json.dump(run.fields("pytorch/ddp", 2, more), file)
                self.assertEqual(isinstance(run.recipe.load_data(run.recipe.Spec.read(path)), ServedData), served)


if __name__ == "__main__":
    run.main("__main__")
