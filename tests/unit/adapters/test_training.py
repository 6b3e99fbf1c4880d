import hashlib
import json
import os
import subprocess
import sys
import types
import unittest
from unittest import mock

import numpy as np

import fixture
import keras_jax
from scalelab import horovod, meter, recipe, training
from scalelab.spec import Spec

TOY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "toy_engine.py")
WEIGHTS = {"b.weight": np.ones((2, 2), np.float32), "a.bias": np.zeros(2, np.float32), "a.running_mean": np.ones(2, np.float32)}


class TrainingTest(fixture.InDirectory):
    def run_toy(self, *arguments, replicas=None, world=1, **fields):
        """(exit status, standard error, events of each file)"""
        spec = {"engine": "toy/engine", "dataset": "synthetic", "global_batch": 10, "batch_per_rank": 10, "train_samples": "35",
                "epochs": 2, "warmup_steps": 2, "learning_rate": 0.5, **fields}
        recipe.write_safetensors(self.path("weights"), WEIGHTS)
        environment = {
            **os.environ, "RANK": "0", "WORLD_SIZE": str(replicas or world), "SCALELAB_ATTEMPT_DIR": self.dir,
            "SCALELAB_SPEC": self.write("spec.json", json.dumps(spec)), "SCALELAB_EVENTS": self.path("events-0.jsonl"),
            "SCALELAB_TRAINER": self.write("trainer", f"#!/bin/sh\ncat {self.dir}/weights\n", 0o755),
        }
        if replicas:
            environment["SCALELAB_REPLICAS"] = str(replicas)
        done = subprocess.run([sys.executable, TOY, *arguments], env=environment, capture_output=True, text=True, timeout=60,
                              check=False)
        events = []
        for rank in range(replicas or 1):
            with open(self.path(f"events-{rank}.jsonl"), encoding="utf-8") as file:
                events.append([json.loads(line) for line in file])
        self.assertEqual("closed" in done.stdout, done.returncode == 0)
        return done.returncode, done.stderr, events

    def test_events_and_metrics_are_those_of_the_protocol(self):
        for arguments in ((), ("late",)):
            status, errors, (events,) = self.run_toy(*arguments, evaluate=True, target_accuracy=0.25)
            self.assertEqual((status, errors), (0, ""))
            self.assertEqual([e["event"] for e in events], ["start"] + (["step"] * 3 + ["epoch"]) * 2 + ["finish"])
            self.assertEqual([(e["epoch"], e["step"]) for e in events if e["event"] == "step"],
                             [(0, 0), (0, 1), (0, 2), (1, 3), (1, 4), (1, 5)])
            start = events[0]
            self.assertEqual((start["framework"], start["version"], start["total_steps"]), ("toy", "toy 1", 6))
            self.assertEqual(start["device"], training.cpu_model())
            step = events[2]["metrics"]
            self.assertGreaterEqual(step.pop("step/data_s"), 0)
            self.assertEqual(step, {"step/total_s": 1, "step/forward_s": 0.1, "step/backward_s": 0.2, "step/optimizer_s": 0.05,
                                    "step/comm_exposed_s": 0.1, "comm/bytes": 8, "train/loss": 2, "train/learning_rate": 0.5})
            epoch = events[4]["metrics"]
            self.assertEqual((epoch["epoch/seconds"], epoch["epoch/throughput"], epoch["epoch/train_loss"]), (3, 10, 2))
            self.assertEqual((epoch["epoch/train_accuracy"], epoch["eval/loss"], epoch["eval/accuracy"]), (0.5, 3, 0.25))
            self.assertEqual(epoch["eval/samples"], 10_000)
            finish = events[-1]["metrics"]  # steps 2 to 5 count: 1.5, 2, 2.5 and 3 seconds
            for key, value in {"run/throughput": 10 / 2.25, "run/throughput_mean": 40 / 9, "run/step_seconds": 2.25,
                               "run/epoch_seconds": 30 / (10 / 2.25), "run/comm_share": 0.1, "run/accuracy": 0.25,
                               "run/train_loss": 5, "run/time_to_accuracy_s": 3, "run/samples_to_accuracy": 30,
                               "run/mean_step_s": 2.25, "run/comm_exposed_s": 0.225, "run/straggler_skew": 0, "run/steps": 6}.items():
                self.assertAlmostEqual(finish[key], value, msg=key)
            for key in ("run/peak_memory_bytes", "run/cpu_utilisation", "run/seconds"):
                self.assertGreater(finish[key], 0)
            os.remove(self.path("events-0.jsonl"))

    def test_later_results_last_from_the_end_of_one_step_to_the_end_of_the_next(self):
        status, errors, (events,) = self.run_toy("later", train_samples="300", epochs=1)
        self.assertEqual((status, errors), (0, ""))
        steps = [e["metrics"]["step/total_s"] for e in events if e["event"] == "step"]
        self.assertEqual(len(steps), 30)
        # The device needs 10 ms for each step, and the host starts 16 of them at once.
        epoch = next(e["metrics"] for e in events if e["event"] == "epoch")
        self.assertAlmostEqual(sum(steps), epoch["epoch/seconds"], places=6)
        for count in range(1, 31):
            self.assertGreaterEqual(sum(steps[:count]), 0.01 * count - 1e-6, f"the first {count} results")
        # Batches are ready long before the results, so the host waits for results and not for data.
        data = [e["metrics"]["step/data_s"] for e in events if e["event"] == "step"]
        self.assertLess(sum(data[18:]), sum(steps[18:]) / 2)

    def test_a_result_that_never_comes_ends_the_rank_in_time(self):
        status, _, (events,) = self.run_toy("stuck", world=2, train_samples="300", epochs=1, comm_timeout_s=1)
        self.assertEqual(status, 1)
        self.assertEqual({key: events[-1][key] for key in ("event", "message", "kind")},
                         {"event": "error", "kind": "communication",
                          "message": "another rank is gone or late, see the output of all ranks: a step has taken longer than 1 s; "
                                     "raise comm_timeout_s if it is only slow"})

    def test_a_process_without_other_ranks_has_no_timeout(self):
        for arguments, more in (((), {}), (("replicas",), {"replicas": 2, "ranks": 2, "batch_per_rank": 5})):
            status, errors, (events, *_) = self.run_toy("slow", *arguments, max_steps="3", comm_timeout_s=0.1, **more)
            self.assertEqual((status, errors), (0, ""))
            self.assertEqual(events[-1]["event"], "finish")

    def test_memory_is_that_of_training_without_the_copy_of_the_parameters(self):
        _, _, (events,) = self.run_toy("copies")
        self.assertLess(events[-1]["metrics"]["run/peak_memory_bytes"], 256 << 20)

    def test_parameters_and_variables_of_a_study_reach_the_engine(self):
        os.environ.update(SCALELAB_PARAM_WIDTH="8", TOY_LEVEL="3")
        status, errors, (events,) = self.run_toy("reads", params={"width": 8}, env={"TOY_LEVEL": "3"})
        self.assertEqual((status, errors), (0, ""))
        metrics = events[-1]["metrics"]
        self.assertEqual([metrics[key] for key in ("run/param", "run/variable", "run/level")], [8, 8, 9])

    def test_batches_are_prepared_ahead_and_in_order(self):
        status, errors, (events,) = self.run_toy("prepares", train_samples="300", epochs=1)
        self.assertEqual((status, errors), (0, ""))
        self.assertEqual([e["metrics"]["train/loss"] for e in events if e["event"] == "step"], list(range(1, 31)))

    def test_hash_covers_parameters_by_name_and_not_buffers(self):
        _, _, (events,) = self.run_toy(save_parameters=True)
        expected = hashlib.sha256(WEIGHTS["a.bias"].tobytes() + WEIGHTS["b.weight"].tobytes()).hexdigest()[:16]
        self.assertEqual(events[-1]["parameter_hash"], expected)
        saved = recipe.read_safetensors(self.path("parameters.safetensors"))
        self.assertEqual(set(saved), set(WEIGHTS))

    def test_every_replica_of_one_process_reports(self):
        status, _, events = self.run_toy("replicas", replicas=2, ranks=2, batch_per_rank=5)
        self.assertEqual(status, 0)
        self.assertEqual([e[0]["rank"] for e in events], [0, 1])
        for e in events:
            self.assertEqual((e[0]["world_size"], len(e), e[-1]["event"]), (2, 10, "finish"))
            self.assertEqual(e[-1]["metrics"]["run/throughput"], 10 / 2.25)

    def test_nothing_measured_is_said(self):
        status, errors, (events,) = self.run_toy(max_steps="2")
        self.assertIn("nothing was measured: the run has 2 steps and warmup_steps is 2", errors)
        self.assertNotIn("run/throughput", events[-1]["metrics"])
        self.assertEqual(status, 0)

    def test_failures_are_error_events(self):
        cases = [
            (("crash",), {}, "ValueError: a bug", "other"),
            (("lacking",), {}, "cannot import what it needs: No module named 'scalelab.no_such_framework'; deploy/frameworks toys "
                               "makes an environment that has it", "configuration"),
            (("memory",), {}, "out of host memory: try a smaller batch_per_rank", "out_of_memory"),
            ((), {"train_samples": 5}, "the training set has 5 samples, fewer than one global batch of 10: use a smaller "
                                       "global_batch or more train_samples", "data"),
            ((), {"cuda_graph": True}, 'engine toy/engine does not have cuda_graph "True": remove it, or use a native engine',
             "configuration"),
            ((), {"compile": True}, 'engine toy/engine does not have compile "True": remove it, or use pytorch/ddp', "configuration"),
            ((), {"engine": "other"}, 'this adapter is engine "toy/engine", not "other"', "configuration"),
        ]
        for arguments, fields, message, kind in cases:
            status, errors, (events,) = self.run_toy(*arguments, **fields)
            self.assertEqual(status, 1)
            self.assertEqual({k: events[-1][k] for k in ("event", "message", "kind")},
                             {"event": "error", "message": message, "kind": kind})
            self.assertIn("toy/engine: " + message, errors)

    def test_a_rank_that_fails_ends_even_if_standard_error_cannot_be_written(self):
        program = (
            "import threading, time\n"
            "from scalelab import training\n"
            "threading.Thread(target=time.sleep, args=(60,)).start()\n"  # Python waits for threads of frameworks
            "training.run(training.Engine)\n"
        )
        environment = {**os.environ, "PYTHONPATH": fixture.ADAPTERS, "SCALELAB_SPEC": self.path("none"),
                       "SCALELAB_EVENTS": self.path("events-0.jsonl")}
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run([sys.executable, "-c", program], env=environment, stdout=full, stderr=full, timeout=30, check=False)
        self.assertEqual(done.returncode, 1)
        with open(self.path("events-0.jsonl"), encoding="utf-8") as file:
            self.assertEqual([json.loads(line)["event"] for line in file], ["error"])


class VariablesTest(fixture.InDirectory):
    def test_variables_of_the_study_replace_those_of_horovod(self):
        os.environ["HOROVOD_CYCLE_TIME"] = "7"
        horovod.configure(recipe.Spec(env={"HOROVOD_CYCLE_TIME": "7"}, cycle_time_ms=2, cache_capacity=3))
        self.assertEqual((os.environ["HOROVOD_CYCLE_TIME"], os.environ["HOROVOD_CACHE_CAPACITY"]), ("7", "3"))
        horovod.configure(recipe.Spec(cycle_time_ms=2))
        self.assertEqual(os.environ["HOROVOD_CYCLE_TIME"], "2")


class MeterTest(unittest.TestCase):
    def test_what_a_step_does_not_show_is_not_known_of_the_run(self):
        measured = meter.RunMeter(0, 8)
        measured.add(1.0, {"step/forward_s": 1, "step/backward_s": 1, "step/optimizer_s": 1, "step/comm_exposed_s": 0})
        self.assertEqual((measured.mean_compute(), measured.metrics(8)["run/comm_share"]), (3, 0))
        self.assertNotIn("run/data_s", measured.metrics(8))
        measured.add(1.0, {"step/forward_s": 1})
        self.assertIsNone(measured.mean_compute())
        self.assertNotIn("run/comm_share", measured.metrics(8))
        self.assertNotIn("run/comm_exposed_s", measured.metrics(8))

    def test_the_wait_for_data_is_a_mean_over_the_measured_steps(self):
        measured = meter.RunMeter(1, 8)
        for total, data in ((9.0, 9.0), (1.0, 0.25), (2.0, 0.5)):
            measured.add(total, {"step/data_s": data})
        self.assertEqual((measured.metrics(8)["run/mean_step_s"], measured.metrics(8)["run/data_s"]), (1.5, 0.375))

    def test_skew_is_the_slowest_over_the_mean(self):
        self.assertAlmostEqual(meter.straggler_skew([1, 1, 2, 1]), 0.6)
        self.assertEqual(meter.straggler_skew([0, 0]), 0)

    def test_event_files_of_replicas(self):
        self.assertEqual(training._event_files("/a/events-0.jsonl", 2), ["/a/events-0.jsonl", "/a/events-1.jsonl"])
        with self.assertRaisesRegex(RuntimeError, "must name"):
            training._event_files("/a/b", 2)


class KerasJaxDevices(unittest.TestCase):
    def settings(self, local_rank, **fields):
        """Returns what the engine keras/jax configures in JAX for a run of one rank."""
        settings = {}
        jax = types.SimpleNamespace(config=types.SimpleNamespace(update=settings.__setitem__), local_devices=lambda: [])
        spec = Spec.parse(json.dumps({"engine": "keras/jax", **fields}), "spec.json")
        with mock.patch.dict(sys.modules, jax=jax), mock.patch.dict(os.environ, LOCAL_RANK=str(local_rank)), \
                mock.patch("importlib.util.find_spec", return_value=True):
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
            keras_jax._join(spec, 0, 1)
        return settings

    def test_a_rank_uses_no_gpu_of_other_ranks(self):
        self.assertEqual(self.settings(2, gpus_per_rank=1)["jax_cuda_visible_devices"], "2")
        self.assertNotIn("jax_cuda_visible_devices", self.settings(0))


if __name__ == "__main__":
    unittest.main()
