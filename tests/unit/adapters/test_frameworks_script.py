"""deploy/frameworks and its requirements, without a network."""
import os
import re
import subprocess
import unittest

import fixture

DEPLOY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "deploy")
PACKAGE = re.compile(r"([a-z0-9-]+)==([^ ]+) --hash=sha256:[0-9a-f]{64}\n")
# Maps each environment to the packages that it must have.
CUDA = {
    "pytorch2": {"torch", "torchvision", "keras", "triton", "nvidia-nccl-cu13", "nvidia-cudnn-cu13", "nvidia-cublas", "nvidia-cusolver"},
    "pytorch": {"cloudpickle", "psutil", "pyyaml"},
    "tensorflow": {"tensorflow", "nvidia-nccl-cu12", "nvidia-cudnn-cu12", "nvidia-cublas-cu12"},
    "keras-tensorflow": {"tensorflow", "keras", "nvidia-nccl-cu12", "nvidia-cudnn-cu12", "nvidia-cublas-cu12"},
    "keras-jax": {"jax", "keras", "jax-cuda13-plugin", "jax-cuda13-pjrt", "nvidia-nccl-cu13", "nvidia-cudnn-cu13"},
}


def packages(name):
    """Returns {package: version} of requirements/NAME.txt, every line of which must have one version and one hash."""
    with open(os.path.join(DEPLOY, "requirements", name + ".txt"), encoding="utf-8") as file:
        lines = [line for line in file if not line.startswith("#")]
    matches = [PACKAGE.fullmatch(line) for line in lines]
    broken = [line for line, match in zip(lines, matches) if match is None]
    if broken:
        raise AssertionError(f"{name}.txt: not of the form NAME==VERSION --hash=sha256:HASH: {broken}")
    return {match[1]: match[2] for match in matches}


class Requirements(unittest.TestCase):
    def test_every_package_has_a_version_and_a_hash(self):
        for name in sorted(os.listdir(os.path.join(DEPLOY, "requirements"))):
            if name.endswith(".txt"):
                with self.subTest(name):
                    self.assertTrue(packages(name[:-4]))

    def test_environments_for_gpus_have_the_libraries_of_cuda(self):
        for name, expected in CUDA.items():
            with self.subTest(name):
                self.assertEqual(expected - set(packages(name + "-cuda")), set())

    def test_environments_for_cpus_and_gpus_have_the_same_frameworks(self):
        for name, framework, package in (("pytorch2", "torch", "torch"), ("pytorch2", "keras", "keras"), ("keras-jax", "jax", "jax"),
                                         ("tensorflow", "tensorflow-cpu", "tensorflow"), ("keras-jax", "keras", "keras"),
                                         ("keras-tensorflow", "tensorflow-cpu", "tensorflow")):
            self.assertEqual(packages(name)[framework], packages(name + "-cuda")[package], name)

    def test_an_environment_repeats_no_package_of_its_base(self):
        self.assertEqual(set(packages("pytorch-cuda")) & set(packages("pytorch2-cuda")), set())


class Frameworks(fixture.InDirectory):
    def run_script(self, *arguments, **environment):
        return subprocess.run([os.path.join(DEPLOY, "frameworks"), *arguments], capture_output=True, text=True, timeout=60, check=False,
                              env={**os.environ, "SCALELAB_FRAMEWORKS": self.path("frameworks"), **environment})

    def fails(self, sentence, *arguments, **environment):
        done = self.run_script(*arguments, **environment)
        self.assertEqual((done.returncode, done.stdout.count("making")), (1, 0), done.stdout)
        self.assertEqual(done.stderr, f"frameworks: {sentence}\n")

    def test_an_unknown_environment_is_named_with_the_known_ones(self):
        self.fails("there is no environment 'torch'; there are pytorch pytorch2 tensorflow keras-tensorflow keras-jax mxnet "
                   "trainers", "torch")
        self.fails("there is no CUDA environment 'mxnet'; there are pytorch2 pytorch tensorflow keras-tensorflow keras-jax; for "
                   "another engine name an environment of your own in the service's configuration", "--cuda", "mxnet")

    def test_the_list_has_every_environment(self):
        listed = [line.split()[0] for line in self.run_script("--list").stdout.splitlines()[1:-1]]
        self.assertEqual([name[:-5] for name in listed if name.endswith("-cuda")], ["pytorch2", "pytorch", "tensorflow", "keras-tensorflow",
                                                                                    "keras-jax"])
        self.assertEqual(listed[0], "pytorch")

    def test_horovod_for_gpus_needs_the_compiler_of_cuda_13(self):
        self.fails(f"Horovod in pytorch-cuda needs the compiler of CUDA 13, which {self.dir}/bin/nvcc is not: install the CUDA "
                   "toolkit 13 and name its folder with CUDA_HOME", "--cuda", "pytorch", CUDA_HOME=self.dir)

    def test_an_environment_needs_its_base(self):
        os.makedirs(self.path("bin"))
        self.write("bin/nvcc", "#!/bin/sh\necho Cuda compilation tools, release 13.0, V13.0.88\n", 0o755)
        self.fails("pytorch-cuda is based on pytorch2-cuda: run deploy/frameworks --cuda pytorch2 first", "--cuda", "pytorch",
                   CUDA_HOME=self.dir)
        self.fails("trainers is based on pytorch2: run deploy/frameworks pytorch2 first", "trainers")

    def test_the_check_of_an_environment_names_the_environments(self):
        done = subprocess.run(["/usr/bin/python3", os.path.join(DEPLOY, "cuda_check.py"), "mxnet"], capture_output=True, text=True,
                              timeout=60, check=False)
        self.assertEqual((done.returncode, done.stderr), (1, "usage: cuda_check.py NAME; names are pytorch-cuda, pytorch2-cuda, "
                                                             "tensorflow-cuda, keras-tensorflow-cuda, keras-jax-cuda\n"))


if __name__ == "__main__":
    unittest.main()
