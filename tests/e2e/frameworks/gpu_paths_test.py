"""Tests parts of PyTorch's engines that only runs on GPUs use, on a CPU and with the PyTorch of the environment pytorch2.

If the test is skipped, it prints the reason and exits with status 77.
"""
import os
import sys
import tempfile
import types
import unittest
from unittest import mock

if "GPU_PATHS_INSIDE" not in os.environ:
    import run

    try:
        python = run.python_of("pytorch/fsdp")
    except unittest.SkipTest as why:
        print("SKIPPED:", why)
        sys.exit(run.SKIPPED)
    os.execve(python, [python, "-B", os.path.abspath(__file__)], {**os.environ, "GPU_PATHS_INSIDE": "1"})

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "worker", "adapters"))
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.optim import PostLocalSGDOptimizer  # noqa: E402
from torch.distributed.tensor import Shard, distribute_tensor  # noqa: E402

from pytorch_dp import PytorchDp  # noqa: E402
from pytorch_fsdp import PytorchFsdp  # noqa: E402
from pytorch_local_sgd import PytorchLocalSgd  # noqa: E402
from pytorch_pipeline import PytorchPipeline  # noqa: E402
from pytorch_zero1 import PytorchZero1  # noqa: E402
from scalelab.spec import Spec  # noqa: E402
from scalelab.torch_device import HostClock  # noqa: E402
from scalelab.torch_engine import TorchEngine  # noqa: E402


def engine(kind, **attributes):
    """Returns an engine with these attributes, whose constructor did not run."""
    made = kind.__new__(kind)
    made.__dict__.update(attributes)
    return made


class Marks:
    """A clock that records the names of its marks."""

    def __init__(self):
        self.names = []

    def mark(self, name):
        self.names.append(name)


def scaler_of(value, parameters):
    """Returns a GradScaler, and sets the gradients of the parameters to `value`."""
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, value)
    return scaler


class GpuPaths(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        file = tempfile.NamedTemporaryFile()  # pylint: disable=consider-using-with
        cls.addClassCleanup(file.close)
        dist.init_process_group("gloo", store=dist.FileStore(file.name, 1), rank=0, world_size=1)
        cls.addClassCleanup(dist.destroy_process_group)

    def test_costs_of_a_pipeline_are_measured_on_the_host_and_sent_from_the_device(self):
        pipeline = engine(PytorchPipeline, device=torch.device("cuda"), rank=0)
        sent = []

        class Sent(Exception):
            pass

        def broadcast(tensor, _):
            sent.append(tensor)
            raise Sent

        # Fake tensors of a GPU have no values, but operations check their devices.
        with mock.patch.object(PytorchPipeline, "_measure", lambda *_: [1.0, 2.0, 3.0]), mock.patch.object(dist, "broadcast", broadcast):
            with FakeTensorMode():
                self.assertRaises(Sent, pipeline._costs, [nn.Identity()] * 3)
        self.assertEqual((sent[0].device.type, sent[0].dtype), ("cuda", torch.float64))

    def test_fsdp_steps_on_shards(self):
        mesh = init_device_mesh("cpu", (1,))
        weight = nn.Parameter(distribute_tensor(torch.ones(4), mesh, [Shard(0)]))
        weight.grad = torch.ones_like(weight)
        fsdp = engine(PytorchFsdp, ranks=2, device=types.SimpleNamespace(type="cuda"))
        torch.optim.SGD([weight], lr=0.5, momentum=0.9, **fsdp.sgd_kernels()).step()
        self.assertEqual(weight.full_tensor().tolist(), [0.5] * 4)

    def test_averages_of_local_sgd_keep_the_strides_of_weights(self):
        layer = nn.Conv2d(8, 8, 3)
        if PytorchLocalSgd.weights_follow_layout:
            layer.to(memory_format=torch.channels_last)
        before = layer.weight.stride()
        averager = PeriodicModelAverager(period=1)
        for parameter in layer.parameters():
            parameter.grad = torch.zeros_like(parameter)
        with mock.patch.object(dist, "get_world_size", lambda *_: 2):
            averager.average_parameters(layer.parameters())
        self.assertEqual(layer.weight.stride(), before)

    def test_local_sgd_averages_although_its_step_is_skipped(self):
        weight = nn.Parameter(torch.ones(2))
        calls = []
        averager = types.SimpleNamespace(average_parameters=lambda **_: calls.append(1))
        optimizer = PostLocalSGDOptimizer(torch.optim.SGD([weight], lr=1.0), averager)
        local = engine(PytorchLocalSgd, ranks=2, optimizer=optimizer, _clock=HostClock())
        local.apply_scaled(scaler_of(float("inf"), [weight]))
        self.assertEqual((calls, weight.tolist()), ([1], [1.0, 1.0]))
        local.apply_scaled(scaler_of(65536.0, [weight]))  # a gradient of 1
        self.assertEqual((calls, weight.tolist()), ([1, 1], [0.0, 0.0]))

    def test_averages_of_local_sgd_are_communication(self):
        marks = Marks()
        weight = nn.Parameter(torch.ones(2))
        weight.grad = torch.zeros(2)
        optimizer = PostLocalSGDOptimizer(torch.optim.SGD([weight], lr=1.0), PeriodicModelAverager(3, warmup_steps=2))
        local = engine(PytorchLocalSgd, ranks=2, optimizer=optimizer, _clock=marks, _bytes=8)
        sent = []
        with mock.patch.object(TorchEngine, "begin_step", lambda *_: None):
            for _ in range(7):
                local.begin_step(None, None, 0.1)
                sent.append(local.gradient_bytes)
                local.apply()
        self.assertEqual(marks.names, ["step/optimizer_s", "step/comm_exposed_s"] * 7)
        # Gradients in two steps, and parameters in steps 2 and 5.
        self.assertEqual(sent, [8, 8, 8, 0, 0, 8, 0])

    def test_the_exchange_of_parameters_of_zero_is_communication(self):
        model, marks = nn.Linear(2, 1), Marks()
        zero = engine(PytorchZero1, ranks=2, spec=Spec.parse("{}", "spec.json"), precision=types.SimpleNamespace(scaler=None),
                      device=torch.device("cpu"), _clock=marks)
        zero.optimizer = zero.make_optimizer(model)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        zero.apply()
        self.assertEqual(marks.names, ["step/optimizer_s", "step/comm_exposed_s"])

    def test_replicas_of_data_parallel_draw_different_random_numbers(self):
        generators = tuple(torch.Generator() for _ in range(3))

        def seed_all(seed):
            for generator in generators:
                generator.manual_seed(seed)

        parallel = engine(PytorchDp, spec=Spec.parse("{}", "spec.json"), rank=0, ranks=3)
        with mock.patch.object(torch.cuda, "default_generators", generators), mock.patch.object(torch.cuda, "manual_seed_all", seed_all):
            parallel.seed_random_numbers()
        drawn = [torch.rand(4, generator=generator).tolist() for generator in generators]
        self.assertEqual(drawn[0], torch.rand(4).tolist())  # replica 0 is rank 0
        self.assertNotIn(drawn[0], drawn[1:])
        self.assertNotEqual(drawn[1], drawn[2])

    def test_momentum_has_a_value_although_the_first_step_is_skipped(self):
        torch.use_deterministic_algorithms(True)  # fills new memory with NaN
        self.addCleanup(torch.use_deterministic_algorithms, False)
        scaler = torch.amp.GradScaler("cpu")
        model = nn.Linear(2, 1)
        trained = engine(TorchEngine, spec=Spec.parse("{}", "spec.json"), precision=types.SimpleNamespace(scaler=scaler))
        trained.sgd_kernels = lambda: {"fused": True}
        trained.optimizer = trained.make_optimizer(model)
        for value in (float("inf"), 1.0):
            scaler.scale(torch.ones(()))
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, value)
            trained.apply_scaled(scaler)
        self.assertTrue(all(torch.isfinite(parameter).all() for parameter in model.parameters()))


if __name__ == "__main__":
    unittest.main(verbosity=2)
