import json
import os
import re
import subprocess
import sys
import unittest

import fixture
import probe  # fixture adds its folder to the path
from scalelab.spec import ENGINES

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
PROBE = os.path.join(SOURCE, "worker", "adapters", "probe.py")
# Maps each engine with an adapter to its environment, as catalog/engines.cc does.
ENVIRONMENTS = {name: row["environment"] for name, row in ENGINES.items() if row["program"] == "adapter"}


class ProbeTest(fixture.InDirectory):
    """Tests probe.py with fake frameworks of a few lines."""

    def module(self, name, text):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        self.write(name + ".py", text)

    def probe(self, engine):
        # -S hides installed packages. -I would also ignore PYTHONPATH, which the test needs.
        done = subprocess.run([sys.executable, "-S", PROBE, engine], env={**os.environ, "PYTHONPATH": self.dir},
                              capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual((done.returncode, done.stdout.count("\n")), (0, 1), done.stderr)
        return json.loads(done.stdout)

    def test_usable(self):
        self.module("torch/__init__", "print('hello')\n__version__ = '1.13.1'\n")
        self.module("torch/distributed", "is_available = lambda: True\n")
        self.assertEqual(self.probe("pytorch/ddp"), {"engine": "pytorch/ddp", "usable": True, "version": "torch 1.13.1",
                                                     "versions": {"torch": "1.13.1"}, "reason": "", "fix": ""})

    def test_not_there(self):
        self.assertEqual(self.probe("keras/jax"),
                         {"engine": "keras/jax", "usable": False, "version": "", "versions": {},
                          "reason": "cannot import keras: No module named 'keras'", "fix": "deploy/frameworks keras-jax"})

    def test_cannot_be_loaded(self):
        self.module("mxnet", "raise OSError('libquadmath.so.0: cannot open shared object file\\nmore')\n")
        answer = self.probe("mxnet/kvstore")
        self.assertEqual(answer["reason"], "cannot import mxnet: libquadmath.so.0: cannot open shared object file")
        self.assertEqual(answer["fix"], "deploy/frameworks mxnet")

    def test_there_but_not_what_the_engine_needs(self):
        self.module("torch/__init__", "__version__ = '1.13.1'\n")
        self.module("torch/distributed", "is_available = lambda: True\n")
        self.module("torch/cuda", "device_count = lambda: 0\n")
        self.write("torch/__init__.py", "__version__ = '1.13.1'\nfrom . import cuda\n")
        cases = {"pytorch/dp": ("pytorch/dp needs a GPU: nn.DataParallel has no replicas on a CPU", ""),
                 "pytorch/fsdp": ("pytorch/fsdp needs torch 2.6 or later, this is 1.13.1", "deploy/frameworks pytorch2"),
                 "pytorch/pipeline": ("pytorch/pipeline needs torch 2.5 or later, this is 1.13.1", "deploy/frameworks pytorch2")}
        for engine, (reason, fix) in cases.items():
            answer = self.probe(engine)
            self.assertEqual((answer["usable"], answer["reason"], answer["fix"]), (False, reason, fix))
            self.assertEqual(answer["versions"], {"torch": "1.13.1"})
        self.module("horovod/__init__", "__version__ = '0.28.1'\n")
        self.module("horovod/torch", "raise ImportError('Extension horovod.torch has not been built')\n")
        answer = self.probe("horovod/pytorch")
        self.assertEqual(answer["reason"], "ImportError: Extension horovod.torch has not been built")

    def test_each_engine_with_an_adapter_has_a_probe_with_its_environment(self):
        self.assertEqual({engine: row[0] for engine, row in probe._ENGINES.items()}, ENVIRONMENTS)

    def test_unknown_engine(self):
        done = subprocess.run([sys.executable, PROBE, "x"], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("engines are pytorch/ddp, pytorch/fsdp", done.stderr)


class FrameworksScriptTest(fixture.InDirectory):
    def frameworks(self, *arguments, **environment):
        done = subprocess.run([os.path.join(SOURCE, "deploy", "frameworks"), *arguments], capture_output=True, text=True, timeout=120,
                              env={**os.environ, "SCALELAB_FRAMEWORKS": self.path("root"), **environment}, check=False)
        return done.returncode, done.stdout, done.stderr

    def test_lists_what_is_not_there(self):
        status, out, _ = self.frameworks("--list")
        self.assertEqual(status, 0)
        self.assertRegex(out, r"(?m)^keras-jax +not there +keras/jax$")

    def test_environments_and_their_engines_are_those_of_the_catalog(self):
        status, out, _ = self.frameworks("--list")
        self.assertEqual(status, 0)
        listed = {}  # by environment; the state before the engines is "not there"
        for line in out.splitlines()[1:-1]:
            name, engines = re.fullmatch(r"(\S+) +not there *(.*)", line).groups()
            listed[name] = engines.split()
        for name, engines in listed.items():
            for engine in engines:
                self.assertEqual(ENVIRONMENTS.get(engine), name.removesuffix("-cuda"), f"{engine} in {name}")
        self.assertEqual({name for name, engines in listed.items() if engines and not name.endswith("-cuda")},
                         set(ENVIRONMENTS.values()))

    def test_names_what_it_has(self):
        status, _, errors = self.frameworks("numpy")
        self.assertEqual(status, 1)
        self.assertIn("there is no environment 'numpy'; there are pytorch pytorch2 tensorflow", errors)

    def test_requirements_are_exact(self):
        directory = os.path.join(SOURCE, "deploy", "requirements")
        files = [name for name in os.listdir(directory) if name.endswith(".txt")]
        self.assertEqual(len(files), 15)
        for name in files:
            with open(os.path.join(directory, name), encoding="utf-8") as file:
                lines = [line for line in file.read().splitlines() if not line.startswith("#")]
            self.assertTrue(lines)
            for line in lines:
                self.assertTrue(re.fullmatch(r"[a-z0-9-]+==[A-Za-z0-9.]+ --hash=sha256:[0-9a-f]{64}", line), f"{name}: {line}")


if __name__ == "__main__":
    unittest.main()
