"""Engine horovod/mxnet: Horovod's DistributedTrainer for Gluon, with one process for each rank, under an MPI launcher."""
from scalelab import horovod, training
from scalelab.mxnet_engine import MxnetEngine, load_mxnet


class HorovodMxnet(MxnetEngine):
    name = "horovod/mxnet"
    framework = "horovod"

    @staticmethod
    def version():
        import horovod as package
        import mxnet

        return f"horovod {package.__version__}, mxnet {mxnet.__version__}"

    def __init__(self, spec, data, rank, ranks, parameters):
        mx = load_mxnet(spec, backends=("mpi",))
        self._hvd = hvd = horovod.start(spec, "mxnet", rank, ranks)
        self.build(mx, spec, data, rank, parameters)
        from scalelab.mxnet_sgd import RecipeSgd

        self._sgd = RecipeSgd(spec, self.steps_per_epoch, len(self.trained), rescale_grad=1)
        compression = getattr(hvd.Compression, spec.gradient_compression)
        self._trainer = hvd.DistributedTrainer(self.trained, self._sgd, compression=compression)

    def update(self):
        self._trainer.step(1)  # the gradients are already means over the rank's batch

    def momenta(self):
        return [self._sgd.momenta[key].asnumpy() for key in self._keys()]

    def continue_after(self, steps, momenta):
        self._sgd.first_step = steps
        self._sgd.momenta = {key: self._mx.nd.array(value) for key, value in zip(self._keys(), momenta)}

    def _keys(self):
        """Returns the optimizer's key of each parameter. Gluon's trainer numbers the parameters in the order of their names."""
        names = sorted(self.trained)
        return [names.index(name) for name in self.trained]

    def begin_evaluation(self):
        # This is a broadcast from rank 0. Horovod's own broadcast may crash with MXNet: EnqueueTensorBroadcast of Horovod 0.28.1 logs
        # the tensor's name after the background thread may have freed it.
        for name, parameter in self.statistics.items():
            values = parameter.data()
            if self._rank > 0:
                values[:] = 0
            self._hvd.allreduce_(values, average=False, name=name)

    def sum_over_ranks(self, numbers):
        mine = self._mx.nd.array(numbers, dtype="float64")
        return self._hvd.allreduce(mine, average=False, name="sum").asnumpy().tolist()

    def close(self):
        self._hvd.shutdown()


if __name__ == "__main__":
    training.run(HorovodMxnet)
