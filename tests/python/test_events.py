"""scalelab.events: the lines that it writes, and runs of the real service with a script that uses it."""
import contextlib
import errno
import importlib
import json
import subprocess
import sys
import types
import unittest
from unittest import mock

import fixture
from scalelab import events


class EventsTest(fixture.InDirectory):
    def setUp(self):
        super().setUp()
        self.now = [100.0]
        for name in ("time.time", "time.monotonic"):
            patch = mock.patch(name, side_effect=lambda: self.now[0])
            patch.start()
            self.addCleanup(patch.stop)

    def run_of(self, spec=None, **more):
        spec = {"max_steps": "3", "seed": "7", "global_batch": 64, "warmup_steps": 1, **(spec or {})}
        environment = {
            "SCALELAB_EVENTS": str(self.dir / "events-1.jsonl"), "SCALELAB_SPEC": self.write("spec.json", json.dumps(spec)),
            "SCALELAB_ATTEMPT_DIR": str(self.dir), "RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2",
        }
        return events.Run(environment, **more)

    def lines(self):
        text = (self.dir / "events-1.jsonl").read_text()
        self.assertTrue(text == "" or text.endswith("\n"))
        return [json.loads(line) for line in text.splitlines()]

    def test_a_run_reports_start_steps_epoch_and_results(self):
        with self.run_of() as run:
            self.assertEqual((run.rank, run.world_size, run.spec["seed"], run.directory), (1, 2, 7, str(self.dir)))
            for seconds, loss in [(9, 3.0), (1, 2.0), (2, 1.0)]:
                self.now[0] += seconds
                run.step({"train/norm": 4}, loss=loss, data_s=0.5, unknown=None)
            self.now[0] += 50  # an evaluation
            run.epoch(accuracy=0.75)
            run.parameter_hash = "abc"
            run.result(device_memory_bytes=5)
        start, *steps, epoch, finish = self.lines()
        self.assertEqual({key: start[key] for key in ("event", "world_size", "rank", "total_steps")},
                         {"event": "start", "world_size": 2, "rank": 1, "total_steps": 3})
        self.assertEqual(start["time"], 100)
        self.assertEqual([(line["event"], line["epoch"], line["step"]) for line in steps], [("step", 0, i) for i in range(3)])
        self.assertEqual(steps[1]["metrics"], {"step/total_s": 1, "train/norm": 4, "train/loss": 2, "step/data_s": 0.5})
        self.assertEqual(epoch["epoch"], 0)
        self.assertEqual(epoch["metrics"], {"epoch/seconds": 12, "epoch/throughput": 16, "epoch/train_loss": 2, "eval/accuracy": 0.75})
        self.assertEqual(finish["parameter_hash"], "abc")
        results = finish["metrics"]
        self.assertGreater(results.pop("run/peak_memory_bytes"), 1 << 20)
        self.assertEqual(results, {"run/steps": 3, "run/seconds": 62, "run/step_seconds": 1.5, "run/throughput": 64 / 1.5,
                                   "run/throughput_mean": 128 / 3, "run/train_loss": 2, "run/accuracy": 0.75,
                                   "run/device_memory_bytes": 5})

    def test_every_whole_number_of_the_parameters_is_a_number(self):
        table = json.loads((fixture.SOURCE / "worker" / "adapters" / "scalelab" / "run_parameters.json").read_text(encoding="utf-8"))
        names = [row["name"] for row in table["parameters"] if row["type"] == "int64"]
        self.assertIn("checkpoint_every_steps", names)
        spec = self.run_of({name: "5000000000" for name in names}).spec
        self.assertEqual({name: spec[name] for name in names}, dict.fromkeys(names, 5_000_000_000))

    def test_the_time_of_an_evaluation_is_in_no_step(self):
        with self.run_of() as run:
            run.step()
            self.now[0] += 30
            run.epoch()
            self.now[0] += 1
            run.step()
            self.now[0] += 30
            run.resume()
            self.now[0] += 2
            run.step()
        self.assertEqual([line["metrics"]["step/total_s"] for line in self.lines() if line["event"] == "step"], [0, 1, 2])

    def test_a_pause_ends_with_the_epoch(self):
        with self.run_of() as run:
            self.now[0] += 1
            run.step()
            run.pause()
            self.now[0] += 30
            run.epoch()
            self.now[0] += 2
            run.resume()
            self.now[0] += 3
            run.step()
        self.assertEqual(self.totals(), [1, 3])

    def totals(self):
        return [line["metrics"]["step/total_s"] for line in self.lines() if line["event"] == "step"]

    def test_the_wait_for_a_tensor_on_a_gpu_is_part_of_its_step(self):
        def wait(_):
            self.now[0] += 3
            return 2.0

        tensor = type("Tensor", (), {"__float__": wait})()
        with self.run_of() as run:
            for _ in range(2):
                self.now[0] += 1
                run.step(loss=tensor)
        self.assertEqual(self.totals(), [4, 4])
        self.assertEqual(self.lines()[-1]["metrics"]["run/throughput"], 16)

    def test_the_loss_of_a_run_is_that_of_its_last_steps(self):
        with self.run_of() as run:
            run.step(loss=4)
            run.epoch()
            run.epoch(accuracy=0.5)  # an evaluation without steps
        self.assertEqual(self.lines()[-1]["metrics"]["run/train_loss"], 4)
        with self.run_of() as run:
            run.step(loss=4)
            run.epoch()
            run.step(loss=2)  # an epoch that does not end
        self.assertEqual(self.lines()[-1]["metrics"]["run/train_loss"], 2)

    def test_results_of_the_script_replace_those_of_later_epochs(self):
        with self.run_of() as run:
            run.result(accuracy=0.9, train_loss=1)
            run.step(loss=4)
            run.epoch(accuracy=0.5)
        results = self.lines()[-1]["metrics"]
        self.assertEqual((results["run/accuracy"], results["run/train_loss"]), (0.9, 1))

    @staticmethod
    def callback(framework, base, run):
        """Returns the callback for a framework, which need not be installed."""
        module = types.ModuleType(framework)
        setattr(module, base, object)
        with mock.patch.dict(sys.modules, {framework: module}):
            return importlib.import_module("scalelab." + framework).Callback(run)

    def losses(self):
        return [line["metrics"].get("train/loss") for line in self.lines() if line["event"] == "step"]

    def keras_callback(self, run, steps, epochs):
        """Returns the callback for `model.fit` of this size. `steps` is None if Keras does not know the size of an epoch."""
        keras = types.ModuleType("keras")
        keras.callbacks = types.SimpleNamespace(Callback=object)
        with mock.patch.dict(sys.modules, {"keras": keras}):
            callback = importlib.import_module("scalelab.keras").Callback(run)
        callback.params = {"steps": steps, "epochs": epochs}
        callback.on_train_begin()
        return callback

    def test_keras_reports_every_batch_of_an_execution(self):
        with self.run_of({"max_steps": "0"}) as run:
            callback = self.keras_callback(run, 10, 2)
            for epoch in range(2):
                callback.on_epoch_begin(epoch)
                # With steps_per_execution=4, the last execution has 2 batches, but Keras counts as if it had 4.
                for last, seconds, mean in [(3, 8, 3.0), (7, 4, 2.0), (11, 3, 1.8)]:
                    self.now[0] += seconds
                    callback.on_train_batch_end(last, {"loss": mean})
                self.now[0] += 30
                callback.on_epoch_end(epoch, {"loss": 1.8})
        start, *lines = self.lines()
        self.assertEqual(start["total_steps"], 20)
        self.assertEqual(self.totals(), ([2] * 4 + [1] * 4 + [1.5] * 2) * 2)
        steps = [line for line in lines if line["event"] == "step"]
        self.assertEqual([(line["epoch"], line["step"]) for line in steps], [(i // 10, i) for i in range(20)])
        for loss, expected in zip(self.losses(), ([None] * 3 + [3] + [None] * 3 + [1] + [None, 1]) * 2):
            self.assertEqual(expected is None, loss is None)
            if loss is not None:
                self.assertAlmostEqual(loss, expected)
        for line in lines:
            if line["event"] == "epoch":
                self.assertEqual((line["metrics"]["epoch/seconds"], line["metrics"]["epoch/throughput"]), (15, 64 * 10 / 15))
        results = lines[-1]["metrics"]
        self.assertEqual((results["run/steps"], results["run/throughput"], results["run/throughput_mean"]), (20, 64 / 1.5, 64 * 19 / 28))

    def test_keras_reports_each_batch_without_a_known_size_of_an_epoch(self):
        with self.run_of({"max_steps": "0"}) as run:
            callback = self.keras_callback(run, None, 1)
            callback.on_epoch_begin(0)
            for batch in range(3):
                self.now[0] += 1
                callback.on_train_batch_end(batch, {"loss": 2.0})
        self.assertEqual((self.totals(), self.losses()), ([1, 1, 1], [2, 2, 2]))

    def test_lightning_reports_steps_without_validations(self):
        trainer = types.SimpleNamespace(estimated_stepping_batches=2, accumulate_grad_batches=1, logged_metrics={}, callback_metrics={},
                                        is_last_batch=False)
        with self.run_of() as run:
            callback = self.callback("lightning", "Callback", run)
            callback.on_train_start(trainer, None)
            self.now[0] += 1
            callback.on_train_batch_end(trainer, None, {"loss": 2}, None, 0)
            callback.on_validation_start(trainer, None)
            self.now[0] += 30
            callback.on_validation_end(trainer, None)
            self.now[0] += 2
            callback.on_train_batch_end(trainer, None, None, None, 1)
        self.assertEqual(self.totals(), [1, 2])
        self.assertEqual(self.losses(), [2, None])

    def test_lightning_reports_a_step_after_its_last_accumulated_batch(self):
        trainer = types.SimpleNamespace(estimated_stepping_batches=2, accumulate_grad_batches=4, logged_metrics={}, callback_metrics={})
        with self.run_of({"max_steps": "0"}) as run:
            callback = self.callback("lightning", "Callback", run)
            callback.on_train_start(trainer, None)
            for batch, loss in enumerate([1, 2, 3, 6, 8, 10]):
                self.now[0] += 1
                trainer.is_last_batch = batch == 5
                callback.on_train_batch_end(trainer, None, {"loss": loss / 4}, None, batch)  # Lightning has divided the loss by 4
                if batch == 1:  # a validation between the batches of a step
                    callback.on_validation_start(trainer, None)
                    self.now[0] += 30
                    callback.on_validation_end(trainer, None)
        self.assertEqual(self.lines()[0]["total_steps"], 2)
        self.assertEqual(self.totals(), [4, 2])
        self.assertEqual(self.losses(), [3, 9])
        results = self.lines()[-1]["metrics"]
        self.assertEqual((results["run/steps"], results["run/throughput"]), (2, 32))

    def test_lightning_does_not_know_the_steps_of_data_without_length(self):
        trainer = types.SimpleNamespace(estimated_stepping_batches=-1)
        with self.run_of({"max_steps": "0"}) as run:
            self.callback("lightning", "Callback", run).on_train_start(trainer, None)
        self.assertEqual(self.lines()[0]["total_steps"], 0)

    def test_steps_that_were_executed_together_share_their_time(self):
        with self.run_of() as run:
            self.now[0] += 6
            run.steps(3, {"train/norm": 4}, loss=2)
            run.steps(2, total_s=5)
            with self.assertRaisesRegex(ValueError, "count is 0; it must be at least 1"):
                run.steps(0)
        self.assertEqual(self.totals(), [2, 2, 2, 5, 5])
        self.assertEqual(self.losses(), [None, None, 2, None, None])
        self.assertEqual(self.lines()[-1]["metrics"]["run/steps"], 5)

    def test_transformers_reports_steps_without_checkpoints(self):
        control = types.SimpleNamespace(should_log=False)
        with self.run_of() as run:
            callback = self.callback("transformers", "TrainerCallback", run)
            self.now[0] += 1
            callback.on_step_end(None, None, control)
            self.now[0] += 20
            callback.on_save(None, None, control)
            self.now[0] += 2
            callback.on_step_end(None, None, control)
        self.assertEqual(self.totals(), [1, 2])

    def test_time_to_accuracy_counts_training_until_the_first_epoch_that_reaches_the_target(self):
        with self.run_of({"target_accuracy": 0.5}) as run:
            for accuracy in (0.4, 0.6, 0.7):
                self.now[0] += 3
                run.step()
                self.now[0] += 20
                run.epoch(accuracy=accuracy)
        self.assertEqual(self.lines()[-1]["metrics"]["run/time_to_accuracy_s"], 6)

    def test_a_checkpoint_is_reported_after_its_steps_are_synced(self):
        synced = []

        def sync(_):
            synced.append([line["event"] for line in self.lines()])

        with mock.patch("os.fsync", side_effect=sync), self.run_of() as run:
            self.now[0] += 0.1
            run.step()
            self.now[0] += 0.1
            run.step()
            self.now[0] += 30  # the writing of the checkpoint
            run.checkpoint(2)
            self.assertEqual({**self.lines()[-1], "time": 0}, {"time": 0, "event": "checkpoint", "step": 2})
            self.now[0] += 2
            run.step()
        self.assertEqual(synced, [["start", "step", "step"]])
        self.assertAlmostEqual(self.totals()[-1], 2)

    def test_a_checkpoint_works_with_an_event_file_that_cannot_be_synced(self):
        for number, raised in [(errno.EINVAL, False), (errno.ENOTSUP, False), (errno.EIO, True)]:
            with self.subTest(errno.errorcode[number]), mock.patch("os.fsync", side_effect=OSError(number, "no")):
                with self.assertRaises(OSError) if raised else contextlib.nullcontext(), self.run_of() as run:
                    run.step()
                    run.checkpoint(1)
            self.assertEqual(self.lines()[-1]["event"], "error" if raised else "finish")

    def test_a_run_continues_with_the_numbers_of_its_checkpoint(self):
        with self.run_of({"max_steps": "9", "target_accuracy": 0.5}, resumed_step=6, resumed_epoch=2) as run:
            for seconds in (9, 1, 2):
                self.now[0] += seconds
                run.step()
            run.epoch(accuracy=0.75)
            run.checkpoint(9)
        start, *steps, epoch, checkpoint, finish = self.lines()
        self.assertEqual((start["event"], start["resumed_step"], start["total_steps"]), ("start", 6, 9))
        self.assertEqual([(line["event"], line["epoch"], line["step"]) for line in steps], [("step", 2, i) for i in (6, 7, 8)])
        self.assertEqual((epoch["epoch"], checkpoint["step"]), (2, 9))
        results = finish["metrics"]
        self.assertEqual((results["run/steps"], results["run/step_seconds"]), (9, 1.5))
        self.assertNotIn("run/time_to_accuracy_s", results)  # the time of earlier attempts is unknown

    def test_the_start_names_a_device_and_a_resumed_step_only_if_the_script_does(self):
        for more, expected in [({}, {}), ({"device": "NVIDIA H100"}, {"device": "NVIDIA H100"}),
                               ({"device": "", "resumed_step": 0}, {}), ({"resumed_step": 4}, {"resumed_step": 4})]:
            with self.subTest(more), self.run_of(**more):
                start = self.lines()[-1]
                self.assertEqual({key: start[key] for key in ("device", "resumed_step") if key in start}, expected)

    def test_numbers_of_steps_that_the_service_would_refuse_are_errors_of_the_caller(self):
        for name in ("resumed_step", "resumed_epoch"):
            with self.assertRaisesRegex(ValueError, f"{name} is -1; it must be at least 0"):
                self.run_of(**{name: -1})
            with self.assertRaises(TypeError):
                self.run_of(**{name: 2.0})
        run = self.run_of()
        with self.assertRaisesRegex(ValueError, "step is -1; it must be at least 0"):
            run.checkpoint(-1)
        with self.assertRaises(TypeError):
            run.checkpoint(2.0)
        self.assertEqual(self.lines(), [])

    def test_without_a_known_number_of_steps_the_first_step_reports_the_start(self):
        with self.run_of({"max_steps": "0"}) as run:
            self.assertEqual(self.lines(), [])
            run.start(total_steps=12)
            run.start(total_steps=99)
        self.assertEqual([(line["event"], line.get("total_steps")) for line in self.lines()], [("start", 12), ("finish", None)])

    def test_an_exception_becomes_an_error_event_and_goes_on(self):
        for error, message, kind in [(ValueError("bad\nmore"), "ValueError: bad", ""), (MemoryError(), "MemoryError", "out_of_memory"),
                                     (RuntimeError("CUDA out of memory."), "RuntimeError: CUDA out of memory.", "out_of_memory"),
                                     (SystemExit(3), "the script ended with exit status 3", "")]:
            with self.subTest(error), self.assertRaises(type(error)), self.run_of() as run:
                run.step(loss=1)
                raise error
            self.assertEqual({key: self.lines()[-1][key] for key in ("event", "message", "kind")},
                             {"event": "error", "message": message, "kind": kind})

    def test_an_error_with_bytes_that_are_not_utf_8_is_valid_json(self):
        run = self.run_of()
        run.error("no such file: data\udcff")
        self.assertEqual(self.lines()[-1]["message"], "no such file: data?")

    def test_exit_status_0_is_a_success(self):
        with self.assertRaises(SystemExit), self.run_of():
            sys.exit()
        self.assertEqual(self.lines()[-1]["event"], "finish")

    def test_step_lines_are_written_together_and_before_other_events(self):
        with self.run_of() as run:
            run.step()
            self.now[0] += 0.4
            run.step()
            self.assertEqual([line["event"] for line in self.lines()], ["start"])
            self.now[0] += 0.2
            run.step()
            self.assertEqual([line.get("step") for line in self.lines()], [None, 0, 1, 2])

    def test_what_is_not_finite_is_text(self):
        with self.run_of() as run:
            run.step({"a": float("nan"), "b": float("inf"), "c": -float("inf")})
        self.assertEqual({key: self.lines()[1]["metrics"][key] for key in "abc"}, {"a": "NaN", "b": "Infinity", "c": "-Infinity"})

    def test_a_line_that_the_service_would_refuse_is_an_error_of_the_caller(self):
        run = self.run_of()
        with self.assertRaisesRegex(ValueError, "more than 65536: report fewer metrics"):
            run.step({f"metric {i}": i for i in range(5000)})

    def test_an_event_file_that_cannot_be_opened_is_named(self):
        with self.assertRaisesRegex(OSError, r"SCALELAB_EVENTS.*No such file.*/none/e"):
            events.Run({"SCALELAB_EVENTS": str(self.dir / "none/e")})

    def test_outside_of_scalelab_nothing_is_written(self):
        with events.Run({}) as run:
            self.assertFalse(run.active)
            run.step(loss=run.spec.get("learning_rate", 1))
            run.epoch()
            run.checkpoint(1)
        self.assertEqual(list(self.dir.iterdir()), [])


class ImportTest(unittest.TestCase):
    def test_events_need_the_standard_library_only(self):
        # -S leaves out all installed packages.
        program = ("import sys; sys.path.insert(0, sys.argv[1]); import scalelab\nwith scalelab.run() as run: run.step()\n"
                   "print(sorted({name.split('.')[0] for name in sys.modules} & {'grpc', 'google', 'pandas', 'yaml', 'numpy'}))")
        site = events.__file__.rsplit("/", 2)[0]
        done = subprocess.run([sys.executable, "-S", "-I", "-c", program, site], capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout, "[]\n")


TRAIN = """
import scalelab

with scalelab.run() as run:
    for step in range(run.spec["max_steps"]):
        run.step(loss=1 / (step + 1) + run.rank)
    run.epoch(accuracy=0.5)
"""
STUDY = """
study: events
fixed: {engine: custom, command: [PYTHON, ./train.py], max_steps: 20, model: none, dataset: none}
matrix: {ranks: [1, 2]}
scaling: {mode: strong, global_batch: 64}
"""

CONTINUED = """
import os, pathlib, scalelab

file = pathlib.Path(os.environ["SCALELAB_CHECKPOINT_DIR"]) / "steps"
first = int(file.read_text()) if file.exists() else 0
with scalelab.run(resumed_step=first, resumed_epoch=first // 10, device="a machine") as run:
    for step in range(first, run.spec["max_steps"]):
        run.step(loss=step + 1)
        if (step + 1) % 10 == 0:
            run.epoch(accuracy=(step + 1) / 100)
        if step == 9:
            file.parent.mkdir()
            file.write_text(str(step + 1))
            run.checkpoint(step + 1)
        if step == 14 and first == 0:
            raise RuntimeError("interrupted")
"""
CONTINUED_STUDY = """
study: continued
fixed: {engine: custom, command: [PYTHON, ./train.py], max_steps: 20, model: none, dataset: none}
matrix: {ranks: [1]}
scaling: {mode: strong, global_batch: 64}
checkpoint: {every: 10}
retry: {max: 1, on: [trainer_error]}
"""


class ServiceTest(fixture.InDirectory):
    def test_a_script_continues_from_its_checkpoint(self):
        service = fixture.Service()
        self.addCleanup(service.close)
        self.write("train.py", CONTINUED)
        study = service.run("study", "submit", self.write("study.yaml", CONTINUED_STUDY.replace("PYTHON", sys.executable))).strip()
        service.run("study", "wait", study)
        run = service.json("run", "list", study)["runs"][0]["name"]
        attempts = service.json("run", "show", run)["run"]["attempts"]
        self.assertEqual([(attempt["resumed_step"], attempt["checkpoint_step"]) for attempt in attempts], [("0", "10"), ("10", "0")])
        self.assertEqual(attempts[-1]["node_infos"][0]["software"], {"device": "a machine"})
        points = service.json("run", "metrics", run)["points"]
        found = {part["key"]: (part["step"], part["value"]) for part in points}
        self.assertEqual(found["train/loss"], ([str(step) for step in range(20)], [step + 1 for step in range(20)]))
        self.assertEqual(found["eval/accuracy"], (["0", "1"], [0.1, 0.2]))

    def test_a_script_needs_no_other_lines_for_a_curve(self):
        service = fixture.Service()
        self.addCleanup(service.close)
        self.write("train.py", TRAIN)
        study = service.run("study", "submit", self.write("study.yaml", STUDY.replace("PYTHON", sys.executable))).strip()
        service.run("study", "wait", study)
        points = service.json("curve", study)["series"][0]["points"]
        self.assertEqual([(point["ranks"], point["state"]) for point in points], [(1, "OK"), (2, "OK")])
        self.assertTrue(all(point["throughput"]["mean"] > 0 and point["accuracy"]["mean"] == 0.5 for point in points))
        run = service.json("run", "list", study)["runs"][0]
        self.assertEqual(service.json("run", "show", run["name"])["run"]["attempts"][0].get("malformed_lines", "0"), "0")


if __name__ == "__main__":
    unittest.main()
