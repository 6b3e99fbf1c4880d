"""The callbacks for Keras, Lightning and the Trainer of Hugging Face, with the real frameworks (deploy/frameworks trainers)."""
import importlib.util
import json
import os
import unittest

import fixture

os.environ.setdefault("KERAS_BACKEND", "torch")
STEPS, EPOCHS = 4, 2  # of each epoch


@unittest.skipUnless(importlib.util.find_spec("lightning"), "deploy/frameworks trainers makes the environment of this test")
class CallbacksTest(fixture.InDirectory):
    def setUp(self):
        super().setUp()
        os.chdir(self.dir)  # trainers write checkpoints there
        os.environ["SCALELAB_EVENTS"] = str(self.dir / "events-0.jsonl")

    def check(self, accuracy, total_steps=STEPS * EPOCHS):
        lines = [json.loads(line) for line in (self.dir / "events-0.jsonl").read_text().splitlines()]
        steps = [line for line in lines if line["event"] == "step"]
        epochs = [line for line in lines if line["event"] == "epoch"]
        self.assertEqual(lines[0]["event"], "start")
        self.assertEqual(lines[0]["framework"], "torch")
        self.assertEqual(lines[0]["total_steps"], total_steps)
        self.assertEqual([line["step"] for line in steps], list(range(STEPS * EPOCHS)))
        self.assertEqual([line["epoch"] for line in steps], [0] * STEPS + [1] * STEPS)
        self.assertEqual([line["epoch"] for line in epochs], [0, 1])
        for line in steps:
            self.assertGreater(line["metrics"]["step/total_s"], 0)
            self.assertGreater(line["metrics"]["train/loss"], 0)
        self.assertEqual([line["metrics"]["eval/accuracy"] for line in epochs], accuracy)
        self.assertEqual(lines[-1]["event"], "finish")
        self.assertEqual(lines[-1]["metrics"]["run/accuracy"], accuracy[-1])
        return steps

    def test_keras(self):
        import keras
        import numpy
        import scalelab.keras

        import scalelab

        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="zeros")])
        # With learning rate 0, every loss is known: it is the mean square of the batch's targets.
        model.compile(optimizer=keras.optimizers.SGD(0.0), loss="mse", metrics=[accuracy_of_half])
        x, y = numpy.ones((STEPS * 2, 2), "float32"), numpy.arange(1, STEPS * 2 + 1, dtype="float32").reshape(-1, 1)
        with scalelab.run() as run:
            model.fit(x, y, batch_size=2, epochs=EPOCHS, shuffle=False, validation_data=(x, y), verbose=0,
                      callbacks=[scalelab.keras.Callback(run)])
        steps = self.check([0.5, 0.5])
        for line, loss in zip(steps, [2.5, 12.5, 30.5, 56.5] * EPOCHS):
            self.assertAlmostEqual(line["metrics"]["train/loss"], loss, places=3)

    def test_lightning(self):
        import lightning
        import scalelab.lightning
        import torch

        import scalelab

        class Model(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(2, 1)

            def training_step(self, batch, _):
                loss = self.layer(batch[0]).square().mean() + 1
                self.log("train_norm", 7.0)
                return loss

            def validation_step(self, batch, _):
                self.log("val_acc", 0.25 * (self.current_epoch + 1))

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.01)

        data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(STEPS * 2, 2)), batch_size=2)
        with scalelab.run() as run:
            trainer = lightning.Trainer(max_epochs=EPOCHS, accelerator="cpu", logger=False, enable_checkpointing=False,
                                        enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=1,
                                        callbacks=[scalelab.lightning.Callback(run)])
            trainer.fit(Model(), data, data)
        steps = self.check([0.25, 0.5])
        self.assertEqual({line["metrics"]["train/norm"] for line in steps}, {7.0})

    def test_hugging_face_trainer(self):
        import scalelab.transformers
        import torch
        import transformers

        import scalelab

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(2, 1)

            def forward(self, x=None, labels=None):
                return {"loss": (self.layer(x) - labels).square().mean() + 1, "logits": self.layer(x)}

        data = [{"x": torch.ones(2), "labels": torch.ones(1)}] * (STEPS * 2)
        with scalelab.run() as run:
            arguments = transformers.TrainingArguments(
                output_dir=str(self.dir / "out"), num_train_epochs=EPOCHS, per_device_train_batch_size=2, logging_steps=1,
                eval_strategy="epoch", save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True)
            trainer = transformers.Trainer(model=Model(), args=arguments, train_dataset=data, eval_dataset=data,
                                           compute_metrics=lambda _: {"accuracy": 0.75},
                                           callbacks=[scalelab.transformers.Callback(run)])
            trainer.train()
        steps = self.check([0.75, 0.75])
        self.assertIn("train/learning_rate", steps[0]["metrics"])


def accuracy_of_half(y_true, y_pred):
    return 0.0 * y_pred[..., 0] + 0.5


accuracy_of_half.__name__ = "accuracy"

if __name__ == "__main__":
    unittest.main()
