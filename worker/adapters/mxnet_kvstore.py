"""Engine mxnet/kvstore: MXNet's parameter server (Li et al. 2014, OSDI) in its synchronous mode dist_sync.

Rank 0 starts the scheduler and one server as child processes, which share its cores. The optimizer runs in the server. A run with
one rank uses a local store.
"""
import ctypes
import os
import signal
import subprocess
import sys
import threading

import numpy as np

from scalelab import checkpoints, rendezvous, stop_signal, training
from scalelab.deadline import Deadline, fail
from scalelab.mxnet_engine import MxnetEngine, load_mxnet

# Keeps stores alive until the process exits: the destructor waits for all ranks, which would block a rank that fails.
_stores = []


class KvStore(MxnetEngine):
    name = "mxnet/kvstore"

    def __init__(self, spec, data, rank, ranks, parameters):
        self._rank, self._ranks, self._spec = rank, ranks, spec
        self._helpers, self._closing = [], False
        if ranks > 1:
            self._meet(spec)
        mx = load_mxnet(spec)
        self.build(mx, spec, data, rank, parameters)
        with Deadline(spec.comm_timeout_s, ranks)("joining the parameter server"):
            self._kv = mx.kv.create("dist_sync" if ranks > 1 else "local")
            _stores.append(self._kv)
            self._init_store()

    def _meet(self, spec):
        self._directory, self._timeout_s = os.environ.get("SCALELAB_ATTEMPT_DIR", "."), spec.comm_timeout_s
        addresses = rendezvous.meet(self._directory, self._rank, self._ranks, self._timeout_s)
        hosts = [a.rsplit(":", 1) for a in addresses]
        os.environ.update(
            DMLC_PS_ROOT_URI=hosts[0][0],
            DMLC_PS_ROOT_PORT=hosts[0][1],
            DMLC_NODE_HOST=hosts[self._rank][0],
            DMLC_NUM_SERVER="1",
            DMLC_NUM_WORKER=str(self._ranks),
            DMLC_ROLE="worker",
        )
        if self._rank == 0:
            for role in ("scheduler", "server"):
                helper = _start_helper(role)
                self._helpers.append(helper)
                threading.Thread(target=self._watch, args=(role, helper), daemon=True).start()

    def _watch(self, role, helper):
        status = helper.wait()
        if not self._closing:
            fail(f"the {role} of the parameter server has exited with status {status}: see its last lines in this rank's output")

    def _init_store(self):
        # Parameter k has key k, and its momentum has key len(self.trained) + k. The keys of sums follow.
        self._first_sum = 2 * len(self.trained)
        self._lengths = []  # (shape, type) of the sums
        for key, parameter in enumerate(self.trained.values()):
            self._kv.init(key, parameter.data())
        self._set_optimizer(len(self.trained))
        if checkpoints.are_on(self._spec):
            zeros = [self._mx.nd.zeros(parameter.shape) for parameter in self.trained.values()]
            for key, value in enumerate(zeros, len(zeros)):
                self._kv.init(key, value)
            self._set_values(len(zeros), zeros)

    def _set_optimizer(self, parameters, first_step=0):
        """Gives the store a new optimizer, for which the first keys are parameters."""
        from scalelab.mxnet_sgd import RecipeSgd

        self._kv.set_optimizer(
            RecipeSgd(self._spec, self.steps_per_epoch, parameters, rescale_grad=1 / self._ranks, first_step=first_step)
        )
        self._kv._barrier()  # without it, a push could arrive on the server before the optimizer

    def _set_values(self, first_key, values):
        """Sets values that are not parameters to those of rank 0. Returns when the store has them."""
        out = [value.zeros_like() for value in values]
        for key, (value, pulled) in enumerate(zip(values, out), first_key):
            self._kv.push(key, value if self._rank == 0 else value.zeros_like())
            self._kv.pull(key, out=pulled)
        self._mx.nd.waitall()

    def momenta(self):
        momenta = [self._mx.nd.empty(parameter.shape) for parameter in self.trained.values()]
        for key, momentum in enumerate(momenta, len(momenta)):
            self._kv.pull(key, out=momentum)
        return [momentum.asnumpy() for momentum in momenta]

    def continue_after(self, steps, momenta):
        self._set_optimizer(0)  # no key is a parameter
        self._set_values(0, [parameter.data() for parameter in self.trained.values()])
        self._set_optimizer(len(self.trained), steps)
        self._set_values(len(self.trained), [self._mx.nd.array(value) for value in momenta])

    def update(self):
        for key, parameter in enumerate(self.trained.values()):
            # The first layers have the highest priority, because the next step needs them first.
            self._kv.push(key, parameter.grad(), priority=-key)
            self._kv.pull(key, out=parameter.data(), priority=-key)

    def begin_evaluation(self):
        values = [p.data().asnumpy() for p in self.statistics.values()]
        mine = np.concatenate(values) if self._rank == 0 else np.zeros(sum(map(len, values)), np.float32)
        first, at = self._sum(mine), 0
        for parameter, value in zip(self.statistics.values(), values):
            parameter.set_data(self._mx.nd.array(first[at : at + len(value)]))
            at += len(value)

    def sum_over_ranks(self, numbers):
        return self._sum(np.array(numbers, np.float64)).tolist()

    def _sum(self, array):
        """Returns the sum of an array over ranks, in the array's precision. Each shape and type has one key in the store."""
        if self._ranks == 1:
            return array
        nd, kind = self._mx.nd, (array.shape, array.dtype.str)
        if kind not in self._lengths:
            self._lengths.append(kind)
            self._kv.init(self._first_sum + self._lengths.index(kind), nd.zeros(array.shape, dtype=array.dtype))
        key = self._first_sum + self._lengths.index(kind)
        total = nd.empty(array.shape, dtype=array.dtype)
        self._kv.push(key, nd.array(array, dtype=array.dtype))
        self._kv.pull(key, out=total)
        return total.asnumpy()

    def close(self):
        if self._ranks > 1:
            # Do not use the store's barrier: rank 0 could leave it and kill the scheduler before the scheduler has
            # released the other ranks.
            rendezvous.exchange(self._directory, "left", self._rank, self._ranks, "", self._timeout_s)
        self._closing = True
        for helper in self._helpers:
            helper.kill()
            helper.wait()


def _start_helper(role):
    """Starts the scheduler or the server. The kernel kills this process when the rank ends."""
    libc = ctypes.CDLL(None)
    here = os.path.dirname(os.path.abspath(__file__))
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))
    with stop_signal.blocked():  # the helper must ignore signals: ranks need it until they have written a checkpoint
        return subprocess.Popen(
            [sys.executable, "-m", "scalelab.mxnet_helper", role],
            env=dict(os.environ, PYTHONPATH=path, OMP_NUM_THREADS="1"),
            stdin=subprocess.DEVNULL,
            preexec_fn=lambda: libc.prctl(1, signal.SIGKILL),  # PR_SET_PDEATHSIG
        )


if __name__ == "__main__":
    training.run(KvStore)
