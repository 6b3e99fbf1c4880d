"""The wheel of the Python client, which pip installs into a new virtual environment without a network."""
import importlib.util
import os
import pathlib
import subprocess
import sys
import unittest

import fixture
import scalelab

WHEELS = sorted(pathlib.Path(scalelab.__file__).resolve().parents[2].glob("scalelab-*.whl"))
# In an environment without other packages, the events must work.
TRAIN = """
import importlib.util, sys, scalelab

assert scalelab.__file__.startswith(sys.prefix), scalelab.__file__
assert importlib.util.find_spec("grpc") is None
with scalelab.run() as run:
    for step in range(run.spec["max_steps"]):
        run.step(loss=1 / (step + 1), total_s=0.5)
    run.epoch(accuracy=0.5)
"""
STUDY = """
study: wheel
fixed: {engine: custom, command: [PYTHON, ./train.py], max_steps: 3, model: none, dataset: none}
matrix: {ranks: [1]}
scaling: {mode: strong, global_batch: 8}
measure: {warmup_steps: 0}
retry: {max: 0}
"""
READ = """
import importlib.metadata, sys, scalelab

assert scalelab.__file__.startswith(sys.prefix), scalelab.__file__
with scalelab.Client(sys.argv[1]) as client:
    study = client.study(sys.argv[2])
    (run,) = client.run_messages(study)
    print(importlib.metadata.version("scalelab"), study.state, run.summary["run/throughput"], run.summary["run/accuracy"])
"""


@unittest.skipUnless(WHEELS, "the folder of the installed package has no wheel; build it with deploy/python-client")
@unittest.skipUnless(importlib.util.find_spec("ensurepip"), "Python cannot make virtual environments; deploy/setup --tests installs "
                     "python3-venv")
class InstalledWheelTest(fixture.InDirectory):
    def test_an_installed_wheel_reports_and_reads_a_run(self):
        for name in [name for name in os.environ if name.startswith(("PIP_", "PYTHON"))]:
            del os.environ[name]  # PYTHONPATH has the contents of the wheel
        environment = self.dir.resolve() / "environment"
        python = str(environment / "bin" / "python")
        self.output(sys.executable, "-m", "venv", str(environment))
        self.output(python, "-m", "pip", "install", "--quiet", "--no-index", "--no-cache-dir", "--disable-pip-version-check",
                    str(WHEELS[-1]))
        service = fixture.Service()
        self.addCleanup(service.close)
        self.write("train.py", TRAIN)
        study = service.run("study", "submit", self.write("study.yaml", STUDY.replace("PYTHON", python))).strip()
        service.run("study", "wait", study)
        # The client also needs grpcio and protobuf, which are packages of the system.
        settings = environment / "pyvenv.cfg"
        settings.write_text(settings.read_text().replace("include-system-site-packages = false", "include-system-site-packages = true"))
        version = WHEELS[-1].name.split("-")[1]
        self.assertEqual(self.output(python, "-c", READ, service.address, study), f"{version} SUCCEEDED 16.0 0.5\n")

    def output(self, *command):
        done = subprocess.run(command, capture_output=True, text=True, timeout=4 * fixture.WITHIN, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout


if __name__ == "__main__":
    unittest.main()
