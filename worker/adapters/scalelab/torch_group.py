"""The base class and the process group of the engines on torch.distributed."""
import datetime
import os

import torch
import torch.distributed as dist

from . import rendezvous
from .torch_device import choose_backend
from .torch_engine import TorchEngine


def join(rank, ranks, backend, timeout_s):
    """Creates the default process group. The kernel chooses rank 0's port when rank 0 starts to listen, so no other process can have
    taken the port. Rank 0 publishes the port in the attempt's directory."""
    timeout = datetime.timedelta(seconds=timeout_s)
    options = dict(world_size=ranks, timeout=timeout, wait_for_workers=False)
    directory = os.environ.get("SCALELAB_ATTEMPT_DIR", ".")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, **options) if rank == 0 else None
    lines = rendezvous.exchange(
        directory, "torch", rank, ranks, rendezvous.announce(store.port if rank == 0 else 0), timeout_s
    )
    met = [line.split() for line in lines]
    hosts = rendezvous.hosts(met)
    if len(set(hosts)) > 1 and "GLOO_SOCKET_IFNAME" not in os.environ:
        # By default Gloo uses the interface that the host name resolves to, which may be the loopback.
        os.environ["GLOO_SOCKET_IFNAME"] = rendezvous.interface_of(met[rank][1])
    if store is None:
        store = dist.TCPStore(hosts[0], int(met[0][2]), is_master=False, **options)
    os.environ.setdefault("NCCL_ASYNC_ERROR_HANDLING", "1")  # needed for torch 1.13; the default in later versions
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=timeout)


class GroupEngine(TorchEngine):
    """An engine on torch.distributed. A single rank has no process group, which would only add overhead."""

    def join(self):
        backend = choose_backend(self.spec, self.device)
        if self.ranks > 1:
            join(self.rank, self.ranks, backend, self.spec.comm_timeout_s)

    def begin_evaluation(self):
        super().begin_evaluation()
        if self.ranks > 1:
            for buffer in self.model.buffers():
                dist.broadcast(buffer, 0)

    def sum_over_ranks(self, numbers):
        if self.ranks == 1:
            return list(numbers)
        sums = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(sums)
        return sums.tolist()

    def close(self):
        if self.ranks > 1:
            dist.destroy_process_group()
