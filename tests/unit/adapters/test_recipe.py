"""Tests of the recipe that do not need the native trainer. adapters_recipe_test.cc compares its bytes with those of the trainer."""
import json
import os
import unittest

import numpy as np

import fixture
from scalelab import data, recipe, splitmix
from scalelab.errors import RunError


def spec(**fields):
    return recipe.Spec(**{"engine": "pytorch/ddp", "dataset": "synthetic", "global_batch": 12, "batch_per_rank": 12, "seed": 5, **fields})


class SplitMixTest(unittest.TestCase):
    def test_gives_the_published_numbers(self):
        # The first numbers of SplitMix64 with seed 1234567, which are published as a test of implementations.
        state = np.array([1234567], np.uint64)
        self.assertEqual(splitmix.draws(state, 1, 3)[0].tolist(),
                         [6457827717110365317, 3203168211198807973, 9817491932198370423])

    def test_below_is_the_upper_half_of_the_product(self):
        numbers = np.array([0, 1, 2**32 - 1, 2**63 + 12345, 2**64 - 1], np.uint64)
        for bound in (1, 2, 9, 50_000, 2**32 - 1):
            self.assertEqual(splitmix.below(numbers, bound).tolist(), [int(n) * bound >> 64 for n in numbers.tolist()])


class SpecTest(unittest.TestCase):
    def test_reads_protobuf_json(self):
        read = recipe.Spec.parse(
            '{"engine":"pytorch/ddp","max_steps":"20","ranks":2,"global_batch":64,"learning_rate":1,"seed":"-3","unknown":{}}', "s")
        self.assertEqual((read.max_steps, read.batch_per_rank, read.learning_rate, read.seed), (20, 32, 1.0, -3))
        self.assertIsInstance(read.learning_rate, float)

    def test_names_the_field_that_is_wrong(self):
        cases = {'{"ranks":"two"}': 'field "ranks" must be an integer, it is "two"',
                 '{"evaluate":1}': 'field "evaluate" must be true or false, it is 1',
                 '{"seed":1.5}': 'field "seed" must be an integer, it is 1.5',
                 '{"model":7}': 'field "model" must be a string, it is 7',
                 '{"ranks":3,"global_batch":64}': 'field "global_batch" must be the 3 ranks times batch_per_rank .21., it is 64',
                 '{"lr_schedule":"step","epochs":60,"lr_milestones":"30,60"}':
                 'field "lr_milestones" must end below the number of epochs, which is 60; it is "30,60"',
                 '{"lr_milestones":"0.5"}': 'field "lr_milestones" needs lr_schedule "step", not "constant"; it is "0.5"',
                 "[]": "not a JSON object"}
        for text, message in cases.items():
            with self.assertRaisesRegex(RunError, "spec.json: " + message) as caught:
                recipe.Spec.parse(text, "spec.json")
            self.assertEqual(caught.exception.kind, "configuration")


class LrMilestonesTest(unittest.TestCase):
    def test_are_epochs_in_ascending_order(self):
        # The same cases as in tests/unit/catalog/run_parameters_test.cc.
        self.assertEqual(recipe.parse_lr_milestones("30,60,80"), [30, 60, 80])
        self.assertEqual(recipe.parse_lr_milestones("2.5"), [2.5])
        self.assertEqual(recipe.parse_lr_milestones(""), [])
        for text in ("30,60,", ",30", "30;60", "30, 60", "60,30", "30,30", "0,30", "-1", "+1", "1.", ".5", "1.2.3", "1e1", "inf", "nan",
                     "0x10", "30,sixty"):
            self.assertIsNone(recipe.parse_lr_milestones(text), text)
            with self.assertRaisesRegex(RunError, "lr_milestones. must be a text with epochs greater than 0 in ascending order"):
                recipe.Spec.parse(json.dumps({"epochs": 90, "lr_schedule": "step", "lr_milestones": text}), "s")


class SamplerTest(unittest.TestCase):
    def test_slices_of_all_ranks_are_the_global_batch(self):
        def batch(ranks, step):
            samplers = [recipe.Sampler(103, 12, r, ranks, 5) for r in range(ranks)]
            for sampler in samplers:
                sampler.start_epoch(2)
            return np.concatenate([s.slice(step) for s in samplers]).tolist()

        self.assertEqual(batch(1, 3), batch(2, 3))
        self.assertEqual(batch(1, 7), batch(4, 7))
        every = sum((batch(1, step) for step in range(8)), [])
        self.assertEqual(len(set(every)), 96)


class BatchesTest(unittest.TestCase):
    def setUp(self):
        self.data = recipe.load_data(spec(train_samples=40))

    def test_end_after_the_last_step(self):
        self.assertEqual(len(list(recipe.Batches(spec(epochs=2), self.data, 0, 1))), 6)
        self.assertEqual(len(list(recipe.Batches(spec(epochs=2, max_steps=5), self.data, 0, 1))), 5)

    def test_layouts_hold_the_same_numbers(self):
        (first, labels), (last, same) = (next(recipe.Batches(spec(), self.data, 0, 1, layout)) for layout in ("NCHW", "NHWC"))
        self.assertEqual((first.shape, last.shape, first.dtype), ((12, 3, 32, 32), (12, 32, 32, 3), np.float32))
        self.assertTrue(np.array_equal(first, last.transpose(0, 3, 1, 2)))
        self.assertTrue(last.flags.c_contiguous)
        self.assertTrue(np.array_equal(labels, same))

    def test_errors_of_the_thread_are_raised_where_the_batch_is_asked_for(self):
        self.data.train_images = self.data.train_images[:3]
        with self.assertRaises(IndexError):
            list(recipe.Batches(spec(), self.data, 0, 1))

    def test_too_few_samples_are_a_sentence(self):
        with self.assertRaisesRegex(RunError, "has 40 samples, fewer than one global batch of 64"):
            recipe.Batches(spec(global_batch=64), self.data, 0, 1)


class DataTest(fixture.InDirectory):
    def test_bad_files_are_named(self):
        cifar = spec(dataset="cifar10", data_dir=self.dir)
        with self.assertRaisesRegex(RunError, "has no data_batch_1.bin"):
            recipe.load_data(cifar)
        np.zeros(3073 + 5, np.uint8).tofile(self.path("data_batch_1.bin"))
        with self.assertRaisesRegex(RunError, "data_batch_1.bin has 3078 bytes, not a multiple of the record size 3073") as caught:
            recipe.load_data(cifar)
        self.assertEqual(caught.exception.kind, "data")
        np.full(3073, 77, np.uint8).tofile(self.path("data_batch_1.bin"))
        with self.assertRaisesRegex(RunError, "label 77 is not in 0 to 9"):
            recipe.load_data(cifar)
        with self.assertRaisesRegex(RunError, 'has no data set "mnist": it has cifar10, imagefolder and synthetic'):
            recipe.load_data(spec(dataset="mnist"))

    def test_train_samples_are_the_first_of_all_files(self):
        for i in (1, 2):
            records = np.zeros((4, 3073), np.uint8)
            records[:, 0], records[:, 1] = i, range(4)
            records.tofile(self.path(f"data_batch_{i}.bin"))
        images, labels = data.load_data(spec(dataset="cifar10", data_dir=self.dir, train_samples=6)).train_images, None
        self.assertEqual(images[:, 0, 0, 0].tolist(), [0, 1, 2, 3, 0, 1])
        labels = data.load_data(spec(dataset="cifar10", data_dir=self.dir)).train_labels
        self.assertEqual(labels.tolist(), [1] * 4 + [2] * 4)


class SafetensorsTest(fixture.InDirectory):
    def test_what_is_written_is_read(self):
        tensors = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.array(7, np.int64), "none": np.empty((0, 4), np.float32)}
        recipe.write_safetensors(self.path("p"), tensors)
        read = recipe.read_safetensors(self.path("p"))
        self.assertEqual(list(read), list(tensors))
        for name, array in tensors.items():
            self.assertEqual((read[name].shape, read[name].dtype), (array.shape, array.dtype))
            self.assertTrue(np.array_equal(read[name], array))
        self.assertEqual(os.listdir(self.dir), ["p"])

    def test_header_is_that_of_the_format(self):
        recipe.write_safetensors(self.path("p"), {"w": np.array([1.5], np.float32)})
        with open(self.path("p"), "rb") as file:
            content = file.read()
        header = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
        header += b" " * (-len(header) % 8)
        self.assertEqual(content, len(header).to_bytes(8, "little") + header + b"\0\0\xc0?")

    def test_garbage_is_an_error(self):
        for garbage in (b"", b"12345678", (99).to_bytes(8, "little") + b"{}"):
            with self.assertRaises(ValueError):
                recipe.parse_safetensors(garbage)


class InitialParametersTest(fixture.InDirectory):
    def test_come_from_the_trainer(self):
        recipe.write_safetensors(self.path("weights"), {"w": np.ones(3, np.float32)})
        script = f'#!/bin/sh\n[ "$1 $SCALELAB_SPEC ${{OMPI_X-unset}}" = "--print-initial-parameters S unset" ] && cat {self.dir}/weights\n'
        os.environ.update(SCALELAB_TRAINER=self.write("trainer", script, 0o755), OMPI_X="1")
        self.assertEqual(recipe.initial_parameters(spec(path="S"))["w"].tolist(), [1, 1, 1])

    def test_failures_are_sentences(self):
        os.environ.pop("SCALELAB_TRAINER", None)
        with self.assertRaisesRegex(RunError, "SCALELAB_TRAINER is not set"):
            recipe.initial_parameters(spec())
        os.environ["SCALELAB_TRAINER"] = self.write("trainer", "#!/bin/sh\necho no such model >&2; exit 1\n", 0o755)
        with self.assertRaisesRegex(RunError, "printed no weights: no such model"):
            recipe.initial_parameters(spec())


class LearningRateTest(unittest.TestCase):
    def test_rises_and_falls(self):
        steps = spec(learning_rate=1.0, warmup_epochs=2.0, warmup_start_rate=0.5, epochs=8, lr_schedule="step")
        self.assertEqual([recipe.learning_rate(steps, s, 10) for s in (0, 10, 20, 39, 40, 60)], [0.5, 0.75, 1.0, 1.0, 0.1, 0.01])
        # The schedule of Goyal et al. 2017 for ImageNet.
        milestones = spec(learning_rate=3.2, warmup_epochs=5.0, warmup_start_rate=0.1, epochs=90, lr_schedule="step",
                          lr_milestones="30,60,80")
        found = [recipe.learning_rate(milestones, s, 10) for s in (0, 50, 299, 300, 599, 600, 799, 800, 899)]
        np.testing.assert_allclose(found, [0.1, 3.2, 3.2, 0.32, 0.32, 0.032, 0.032, 0.0032, 0.0032], rtol=1e-15)
        within = spec(learning_rate=1.0, epochs=4, lr_schedule="step", lr_milestones="2.5")
        self.assertEqual([recipe.learning_rate(within, s, 10) for s in (24, 25)], [1.0, 0.1])
        cosine = spec(learning_rate=1.0, epochs=2, lr_schedule="cosine")
        self.assertAlmostEqual(recipe.learning_rate(cosine, 10, 10), 0.5)


if __name__ == "__main__":
    unittest.main()
