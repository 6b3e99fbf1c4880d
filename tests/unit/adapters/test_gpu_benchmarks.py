"""Tests deploy/gpu_benchmarks.py with stand-ins for the trainer and the adapter."""
import json
import os
import select
import signal
import subprocess
import sys
import unittest
from unittest import mock

import fixture

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "..", "deploy"))
import gpu_benchmarks  # noqa: E402

from scalelab.spec import Spec  # noqa: E402

# A rank that trains 3 steps of one second each, of which one is warm-up.
RANK = """#!{python}
import json, os, time
spec = json.load(open(os.environ["SCALELAB_SPEC"]))
fast = 2.0 if spec["engine"].startswith("native/") else 1.0
if spec.get("precision") == "fp32":
    events = [{{"event": "error", "message": "no | memory"}}]
else:
    events = [{{"event": "step", "time": time.time(), "metrics": {{"step/total_s": 1, "train/loss": 2 - i}}}} for i in range(3)]
    events.append({{"event": "finish", "metrics": {{"run/throughput": 100 * fast, "run/step_seconds": 1 / fast, "run/steps": 3,
                                                 "run/device_memory_bytes": 2**30}}}})
with open(os.environ["SCALELAB_EVENTS"], "a") as file:
    for event in events:
        file.write(json.dumps(event) + "\\n")
"""


class GpuBenchmarks(fixture.InDirectory):
    def setUp(self):
        super().setUp()
        text = RANK.format(python=sys.executable)
        self.trainer = self.write("trainer", text, 0o755)
        self.write("pytorch_ddp.py", text)

    def run_one(self, engine="native/ddp", **more):
        spec = {"warmup_steps": 1, "global_batch": 10, **more}
        return gpu_benchmarks.run(self.trainer, engine, spec, 1, 30, self.dir)

    def test_a_benchmark_has_the_figures_of_the_finish_event(self):
        self.assertEqual(self.run_one(), {"throughput": 200, "step_seconds": 0.5, "device_memory_bytes": 2**30, "last_loss": 0})
        self.assertEqual(self.run_one("pytorch/ddp")["throughput"], 100)

    def test_a_failure_has_the_reason_of_the_rank(self):
        self.assertEqual(self.run_one(precision="fp32"), {"error": "no | memory"})
        self.write("trainer", "#!/bin/sh\necho broken >&2; exit 3\n", 0o755)
        self.assertEqual(self.run_one(), {"error": "broken"})

    def test_a_benchmark_that_takes_too_long_is_ended(self):
        self.write("trainer", "#!/bin/sh\nexec sleep 1000\n", 0o755)
        figures = gpu_benchmarks.run(self.trainer, "native/ddp", {"warmup_steps": 0, "global_batch": 1}, 1, 0.2, self.dir)
        self.assertEqual(figures, {"error": "it took longer than 0 s", "late": True})

    def test_the_energy_is_that_of_the_measured_steps(self):
        readings = [(i / 10, 50 * i / 10 if i < 100 else 500 + 250 * (i - 100) / 10) for i in range(301)]
        steps = [{"event": "step", "time": t, "metrics": {"step/total_s": s}} for t, s in ((9, 8), (12, 2), (14, 2), (25, 2))]
        self.assertAlmostEqual(gpu_benchmarks.energy_of(steps, 1, readings), 1500)
        self.assertIsNone(gpu_benchmarks.energy_of(steps, 1, readings[:200]))
        self.assertIsNone(gpu_benchmarks.energy_of(steps, 1, []))
        self.assertIsNone(gpu_benchmarks.energy_of(steps, 4, readings))

    def test_without_nvml_there_are_no_readings(self):
        with gpu_benchmarks.Meter(1, self.path("libnvidia-ml.so.1")) as meter:
            pass
        self.assertEqual(meter.readings, [])

    @unittest.skipUnless("FAKE_NVML_LIBRARY" in os.environ, "the stand-in for NVML is not built")
    def test_the_meter_adds_up_the_gpus(self):
        with gpu_benchmarks.Meter(2, os.environ["FAKE_NVML_LIBRARY"]) as meter:
            pass
        (begin, low), (end, high) = meter.readings[0], meter.readings[-1]
        self.assertAlmostEqual(high - low, 300 * (end - begin), delta=3)

    def test_what_does_not_fit_into_the_time_is_listed(self):
        report = self.measure(0)
        self.assertEqual(report["benchmarks"], [])
        self.assertEqual(len(report["left_out"]), len(gpu_benchmarks.benchmarks(True, 1)))
        self.assertIn("resnet50, batch 128, amp-bf16, native, CUDA graph", report["left_out"])

    def measure(self, limit):
        """Returns the report of the quick benchmarks in `limit` seconds, written after each of them."""
        report = {"machine": {"time": "now", "gpus": ["H"]}, "tests": {}, "benchmarks": [], "all_reduce": [], "left_out": []}
        for number, _ in enumerate(gpu_benchmarks.measure(self.trainer, True, 1, limit, report, self.dir), 1):
            gpu_benchmarks.write(report, self.path("report"))
            with open(self.path("report/report.json"), encoding="utf-8") as file:
                written = json.load(file)
            self.assertEqual(len(written["benchmarks"]) + len(written["left_out"]), number)
        return report

    def test_the_end_of_the_time_during_a_benchmark_leaves_it_out(self):
        self.write("trainer", "#!/bin/sh\nexec sleep 1000\n", 0o755)
        gpu_benchmarks.SHORTEST, before = 0.1, gpu_benchmarks.SHORTEST
        self.addCleanup(setattr, gpu_benchmarks, "SHORTEST", before)
        report = self.measure(0.2)
        self.assertEqual(report["benchmarks"], [])
        self.assertIn("resnet50, batch 128, amp-bf16, native, CUDA graph", report["left_out"])

    def test_a_benchmark_that_breaks_does_not_lose_the_others(self):
        with open(self.trainer, encoding="utf-8") as file:
            text = file.read()
        self.write("trainer", text.replace('"run/throughput"', '"run/other"'), 0o755)
        self.write("pytorch_ddp.py", text)
        report = self.measure(600)
        failed = {r["mode"]: r["error"] for r in report["benchmarks"] if "error" in r}
        self.assertEqual(failed, {mode: "KeyError: 'run/throughput'" for mode in ("native, CUDA graph", "native, eager")})
        self.assertEqual(len(report["benchmarks"]), len(gpu_benchmarks.benchmarks(True, 1)))
        with open(self.path("report/report.md"), encoding="utf-8") as file:
            self.assertIn("| resnet50, batch 128, amp-bf16 | PyTorch, eager | 100 | 1.00 | 1000.00 | 1.00 |  |", file.read().splitlines())

    def test_the_benchmarks_of_the_targets_come_first(self):
        first = [(title.split(",")[0], mode) for title, mode, *_ in gpu_benchmarks.benchmarks(True, 1)[:6]]
        modes = ["native, CUDA graph", "PyTorch, compiled, CUDA graphs", "PyTorch, eager"]
        self.assertEqual(first, [(model, mode) for model in ("resnet50", "resnet44") for mode in modes])

    def test_the_meter_reads_the_gpus_that_are_visible(self):
        for visible, indices in (("3,1", [3, 1]), ("2", [2])):
            with mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES=visible):
                self.assertEqual(list(gpu_benchmarks._nvml_indices(2)), indices)
        with mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES="GPU-1f"):
            self.assertRaises(ValueError, gpu_benchmarks._nvml_indices, 1)

    def test_every_benchmark_is_a_run_that_its_engine_accepts(self):
        for gpus in (1, 4):
            for title, mode, engine, spec, ranks in gpu_benchmarks.benchmarks(False, gpus):
                with self.subTest(title=title, mode=mode):
                    parsed = Spec.parse(json.dumps({"engine": engine, **spec}), "spec.json")
                    self.assertEqual((parsed.ranks, parsed.global_batch), (ranks, ranks * parsed.batch_per_rank))
                    self.assertFalse(parsed.compile and engine != "pytorch/ddp")
                    self.assertFalse(parsed.cuda_graph and not parsed.compile and engine != "native/ddp")
        titles = [b[:2] for b in gpu_benchmarks.benchmarks(False, 4)]
        self.assertEqual(len(set(titles)), len(titles))

    def test_the_report_compares_with_pytorch(self):
        results = [{"title": "a", "mode": mode, **self.run_one(engine)} for mode, engine in
                   (("native, eager", "native/ddp"), ("PyTorch, eager", "pytorch/ddp"))]
        results.append({"title": "a", "mode": "native, CUDA graph", **self.run_one(precision="fp32")})
        self.write("tests.xml", '<testsuite tests="3" failures="1" skipped="1"><testcase name="b"/><testcase name="c"><failure/></testcase>'
                                "</testsuite>")
        report = {"machine": {"time": "now", "gpus": ["H"]}, "tests": gpu_benchmarks.tests_of(self.path("tests.xml")),
                  "benchmarks": results, "all_reduce": [{"mib": 1, "ranks": 2, "seconds": 1e-3, "bus_gb_per_s": 1.05}],
                  "left_out": ["b, eager"]}
        text = gpu_benchmarks.markdown(json.loads(json.dumps(report)))
        for line in ("# GPU check of now", "| gpus | [\"H\"] |", "Tests: 3, failed 1, skipped 1. c",
                     "| a | native, eager | 200 | 2.00 | 500.00 | 1.00 |  |", "| a | PyTorch, eager | 100 | 1.00 | 1000.00 | 1.00 |  |",
                     "| a | native, CUDA graph | failed: no   memory | | | | |", "| 1 | 2 | 1.000 | 1.1 |",
                     "Left out, because the time was over: b, eager."):
            self.assertIn(line, text.splitlines())


CHECK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "deploy", "gpu-check")


class GpuCheck(fixture.InDirectory):
    """deploy/gpu-check with stand-ins for CMake, ctest and a Python with PyTorch."""

    def prepare(self, gpus, build, tests, benchmarks, torch="torch", report="there"):
        """Writes the stand-ins. Returns the beginning of the command, and its environment."""
        self.write("cmake", f"#!/bin/sh\necho \"$*\" >>{self.dir}/cmake.log\n{build}\n", 0o755)
        self.write("ctest", f"#!/bin/sh\necho \"$*\" >>{self.dir}/ctest.log\n{tests}\n", 0o755)
        python = self.write("python", f"#!/bin/sh\n[ $1 = -c ] && printf '%s\\n' '{self.dir}/{torch}' 13.0 {gpus} && exit\n"
                                      f"echo \"$*\" >{self.dir}/python.log\necho $LD_LIBRARY_PATH >{self.dir}/libraries.log\n"
                                      f"mkdir -p {self.dir}/report {self.dir}/build/gpu-check\n"
                                      f"[ -n '{report}' ] && touch {self.dir}/report/report.md {self.dir}/build/gpu-check/report.md\n"
                                      f"exit {benchmarks}\n", 0o755)
        os.makedirs(self.path(f"{torch}/include/ATen"), exist_ok=True)
        environment = {**os.environ, "PATH": self.dir + os.pathsep + os.environ["PATH"]}
        return [CHECK, "--python", python, "--dir", self.path("build")], environment

    def check(self, gpus, *arguments, build="", tests="exit 0", benchmarks=0, seconds=None, torch="torch", report="there"):
        command, environment = self.prepare(gpus, build, tests, benchmarks, torch, report)
        if seconds is not None:
            environment["SCALELAB_GPU_CHECK_SECONDS"] = str(seconds)
        return subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False)

    def log(self, name):
        with open(self.path(name), encoding="utf-8") as file:
            return file.read()

    def test_without_a_gpu_it_builds_for_cpus_and_ends_with_77(self):
        done = self.check(0)
        self.assertEqual(done.returncode, 77, done.stderr)
        self.assertIn(f"(CUDA 13.0) sees no GPU here, so the trainer was only built, in {self.dir}/build\n", done.stdout)
        self.assertIn(f"-DSCALELAB_TORCH={self.dir}/torch -DSCALELAB_CUDA=OFF", self.log("cmake.log"))
        self.assertFalse(os.path.exists(self.path("ctest.log")))

    def test_the_path_of_pytorch_may_have_a_space(self):
        done = self.check(0, torch="my torch")
        self.assertEqual(done.returncode, 77, done.stderr)
        self.assertIn(f"-DSCALELAB_TORCH={self.dir}/my torch -DSCALELAB_CUDA=OFF", self.log("cmake.log"))

    def test_with_a_gpu_it_tests_and_measures(self):
        done = self.check(2, "--quick", "--out", self.path("report"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("-DSCALELAB_CUDA=ON", self.log("cmake.log"))
        self.assertIn("-L gpu", self.log("ctest.log"))
        self.assertIn(f"--out {self.dir}/report --quick", self.log("python.log"))

    def test_a_failed_test_or_benchmark_is_a_failure(self):
        self.assertEqual(self.check(1, tests="exit 8").returncode, 1)
        self.assertTrue(os.path.exists(self.path("python.log")), "the benchmarks run nevertheless")
        self.assertEqual(self.check(1, benchmarks=1).returncode, 1)

    def test_without_a_report_none_is_named(self):
        done = self.check(1, benchmarks=1, report="")
        self.assertEqual(done.returncode, 1)
        self.assertIn("gpu-check: there is no report, because no benchmark ended", done.stderr)

    def test_packages_that_are_unpacked_in_a_folder_are_used(self):
        for folder in ("bin", "lib/x86_64-linux-gnu"):
            os.makedirs(self.path(f"unpacked/usr/{folder}"))
        self.write("unpacked/usr/bin/mpicc.openmpi", "#!/bin/sh\n", 0o755)
        usr = self.path("unpacked/usr")
        done = self.check(1, "--prefix", usr, build=f"echo $OPAL_PREFIX $LD_LIBRARY_PATH >>{self.dir}/variables.log",
                          tests=f"echo $OPAL_PREFIX $LD_LIBRARY_PATH $OMPI_MCA_plm >>{self.dir}/variables.log")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"-DCMAKE_PREFIX_PATH={usr} -DMPI_C_COMPILER={usr}/bin/mpicc.openmpi -DMPIEXEC_EXECUTABLE={usr}/bin/mpirun.openmpi",
                      self.log("cmake.log"))
        lines = self.log("variables.log").splitlines()
        for line in lines:
            self.assertTrue(line.startswith(f"{usr} {usr}/lib:{usr}/lib/x86_64-linux-gnu:"), line)
        self.assertTrue(lines[-1].endswith(" isolated"), lines[-1])
        self.assertTrue(self.log("libraries.log").startswith(f"{usr}/lib:{usr}/lib/x86_64-linux-gnu:"), "for the trainer too")

    def test_the_limit_is_for_everything(self):
        self.check(1, "--quick")
        words = self.log("python.log").split()
        seconds = float(words[words.index("--seconds") + 1])
        self.assertGreater(seconds, 400)
        self.assertLessEqual(seconds, 480 - 10)

    def test_a_build_that_takes_too_long_is_ended(self):
        done = self.check(1, build="exec sleep 50", seconds=2)
        self.assertEqual(done.returncode, 1)
        self.assertIn("the build took longer than 1 s, half of the time of gpu-check, and was ended; run gpu-check again", done.stderr)
        self.assertFalse(os.path.exists(self.path("ctest.log")))

    def test_tests_that_take_too_long_are_ended_and_the_rest_is_measured(self):
        done = self.check(1, tests="exec sleep 50", seconds=20)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "gpu-check: the tests took longer than (9|10) s and were ended")
        self.assertTrue(os.path.exists(self.path("python.log")))

    def test_an_interrupt_ends_the_command_that_runs(self):
        # The build keeps the write end of the pipe open until it ends.
        os.mkfifo(self.path("running"))
        command, environment = self.prepare(1, f"exec 9>{self.dir}/running\necho begin >&9\nexec sleep 50", "", 0)
        for number in (signal.SIGINT, signal.SIGTERM):
            # A shell cannot trap a signal that was ignored at its start.
            with self.subTest(number):
                check = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL,
                                         preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
                self.addCleanup(check.kill)
                with open(self.path("running"), encoding="utf-8") as running:
                    self.assertEqual(running.readline(), "begin\n")
                    check.send_signal(number)
                    self.assertEqual(check.wait(timeout=20), 128 + number)
                    self.assertTrue(select.select([running], [], [], 20)[0], "the build still runs")
                    self.assertEqual(running.read(), "")
        self.assertFalse(os.path.exists(self.path("ctest.log")))

    def test_a_python_without_pytorch_is_named(self):
        done = self.check(0, "--python", "/bin/false")
        self.assertEqual((done.returncode, done.stderr), (1, "gpu-check: /bin/false has no PyTorch; name one that has it with --python\n"))


if __name__ == "__main__":
    unittest.main()
