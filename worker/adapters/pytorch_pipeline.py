"""Engine pytorch/pipeline: torch.distributed.pipelining with the schedules GPipe (Huang et al. 2019) and 1F1B (Narayanan et al. 2021).

As in native/pipeline, rank r has stage r % pipeline_stages of group r // pipeline_stages. A group trains on one part of the global batch,
and equal stages of the groups average their gradients. Every rank has the whole model, but trains only the blocks of its stage.
"""
import copy

from scalelab import choices, pipeline, training
from scalelab.errors import RunError

with training.importing("pytorch/pipeline"):
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn import functional as F

    from scalelab.models_torch import blocks_of, loss_and_logits
    from scalelab.torch_device import Readback, Stopwatch
    from scalelab.torch_group import GroupEngine

try:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
except Exception:  # pylint: disable=broad-except  # older versions raise different exceptions, depending on Python's version
    PipelineStage = None

_SCHEDULE = "schedule"  # the name of the part of a step that runs the schedule


class _Stage(nn.Sequential):
    """The blocks of a stage, in the precision of the run. Messages between stages are contiguous tensors of the same type."""

    def __init__(self, blocks, precision, layout, message, last):
        super().__init__(*blocks)
        self._precision, self._message, self._last = precision, message, last
        self._format = torch.channels_last if layout == "NHWC" else torch.contiguous_format

    def forward(self, x):
        with self._precision.scope():
            y = super().forward(x.contiguous(memory_format=self._format))
        return y.float() if self._last else y.to(self._message).contiguous()


class _TimedStage(PipelineStage or object):
    """A stage that measures its forward and backward passes."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.forward_s, self.backward_s = Stopwatch(), Stopwatch()

    def forward_one_chunk(self, *arguments, **options):
        with self.forward_s:
            return super().forward_one_chunk(*arguments, **options)

    def backward_one_chunk(self, *arguments, **options):
        with self.backward_s:
            return super().backward_one_chunk(*arguments, **options)


class PytorchPipeline(GroupEngine):
    name = "pytorch/pipeline"
    shared_state = ()  # each rank stores its stage

    def join(self):
        if PipelineStage is None:
            raise RunError(
                f"pytorch/pipeline needs torch 2.5 or later, this is {torch.__version__}: deploy/frameworks pytorch2 makes one",
                "configuration",
            )
        # Loss scaling is not supported, because the scale would have to be the same on all stages.
        choices.check_precision(self.spec, self.device.type == "cuda", gpu_precisions=("tf32",))
        self._stages = pipeline.stages(self.spec, self.ranks)
        self._groups, self._stage = self.ranks // self._stages, self.rank % self._stages
        pipeline.check(self.spec, self._stages, self._groups)
        super().join()

    def data_part(self, rank, ranks):
        return rank // self._stages, self._groups

    def make_model(self, data, parameters):
        self._side = data.side
        return super().make_model(data, parameters)

    def wrap(self, model):
        self._parts = self.spec.accumulation_steps
        self._steps, self._idle = 0, pipeline.Idle()
        if self.ranks == 1:
            return model
        self._pipe, self._equals = self._make_groups()
        blocks = blocks_of(model)
        if self._stages > len(blocks):
            raise RunError(
                f"the model has {len(blocks)} blocks, too few for {self._stages} stages: set pipeline_stages to at most {len(blocks)}",
                "configuration",
            )
        self._divide(blocks, pipeline.divide_by_cost(self._costs(blocks), self._stages))
        return self._own

    def _divide(self, blocks, begins):
        """Makes this rank's stage. `begins` has the first block of each stage, followed by the number of blocks."""
        self._begins = begins
        self._blocks = [blocks[begin:end] for begin, end in zip(begins, begins[1:])]  # the blocks of each stage
        types = {"amp-bf16": torch.bfloat16}
        message = types.get(self.spec.precision, torch.float32)
        last = self._stage == self._stages - 1
        self._own = _Stage(self._blocks[self._stage], self.precision, self.layout, message, last)
        self._schedule = self._make_schedule(self._own, blocks, begins, message)

    def _make_groups(self):
        """Returns the process groups of this rank's pipeline and of the ranks with the same stage; None for all ranks."""
        if self._groups == 1:
            return None, None
        # Every rank must participate in the creation of every group.
        pipes = [dist.new_group(range(first, first + self._stages)) for first in range(0, self.ranks, self._stages)]
        equals = [dist.new_group(range(stage, self.ranks, self._stages)) for stage in range(self._stages)]
        return pipes[self.rank // self._stages], equals[self._stage]

    def _costs(self, blocks):
        """Returns the seconds that forward and backward of each block take on rank 0."""
        costs = torch.zeros(len(blocks), dtype=torch.float64, device=self.device)
        if self.rank == 0:
            # Measure copies of the blocks, because training a block changes its running statistics.
            costs.copy_(torch.tensor(self._measure(copy.deepcopy(nn.ModuleList(blocks))), dtype=torch.float64))
        dist.broadcast(costs, 0)
        return costs.tolist()

    def _measure(self, blocks):
        seconds = [float("inf")] * len(blocks)
        for _ in range(3):  # the first round is slower
            x = torch.zeros(2, 3, self._side, self._side, device=self.device)
            for i, block in enumerate(blocks):
                x = x.detach().requires_grad_()
                with Stopwatch(self.device) as watch:
                    y = block(x)
                    y.sum().backward()
                seconds[i], x = min(seconds[i], watch.seconds), y
        return seconds

    def _make_schedule(self, stage, blocks, begins, message):
        samples = self.spec.global_batch // self._groups // self._parts
        shapes = _edges(blocks, begins, (samples, 3, self._side, self._side))
        first, last = self._stage == 0, self._stage == self._stages - 1
        types = torch.float32 if first else message, torch.float32 if last else message
        arrives, leaves = (
            torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in zip(shapes[self._stage : self._stage + 2], types)
        )
        sent = (0 if first else arrives.numel() * arrives.element_size()) + (0 if last else leaves.numel() * leaves.element_size())
        self.gradient_bytes = self._parts * sent
        if self._equals is not None:
            self.gradient_bytes += sum(p.numel() * p.element_size() for p in stage.parameters())
        if first and self.layout == "NHWC":
            arrives = arrives.to(memory_format=torch.channels_last)
        # Pass the shapes, so that PyTorch does not run the stage to find them. That would change the running statistics.
        self._timed = _TimedStage(
            stage, self._stage, self._stages, self.device, input_args=(arrives,), output_args=(leaves,), group=self._pipe
        )
        kind = ScheduleGPipe if self.spec.pipeline_schedule == "gpipe" else Schedule1F1B
        return kind(self._timed, self._parts, loss_fn=self._loss)

    def _loss(self, logits, labels):
        with self._timed.forward_s:
            return F.cross_entropy(logits, labels)

    def make_optimizer(self, model):
        return super().make_optimizer(model if self.ranks == 1 else self._own)

    def step(self, images, labels, rate):
        clock, images, labels = self.begin_step(images, labels, rate)
        loss_and_correct = self._train(images, labels)
        clock.mark(_SCHEDULE)
        passes = self._passes()
        self.apply()
        clock.mark("step/optimizer_s")
        self._steps += 1
        measured = self._steps > self.spec.warmup_steps
        readback = Readback(*loss_and_correct)

        def result():
            times = clock.times()
            schedule = times.pop(_SCHEDULE)
            if passes is not None:
                times.update(passes, **{"step/comm_exposed_s": max(0.0, schedule - sum(passes.values()))})
                if measured:
                    self._idle.add(times["step/comm_exposed_s"], schedule)
            return training.StepResult(*readback.numbers(), times, {"comm/bytes": self.gradient_bytes})

        return result if self.device.type == "cuda" else result()

    def _train(self, images, labels):
        """Computes the mean gradients of the batch. Returns a tensor with the mean loss and the number of correct answers."""
        if self.ranks == 1:
            return self._train_alone(images, labels)
        first, last, losses = self._stage == 0, self._stage == self._stages - 1, []
        logits = self._schedule.step(*((images,) if first else ()), target=labels if last else None, losses=losses)
        found = torch.zeros(2, dtype=torch.float64, device=self.device)
        if last:
            found[0] = torch.stack(losses).detach().mean()
            found[1] = logits.detach().argmax(1).eq(labels).sum()
        dist.broadcast(found, (self.rank // self._stages + 1) * self._stages - 1, group=self._pipe)
        if self._equals is not None:
            self._average_gradients()
        return found

    def _train_alone(self, images, labels):
        """Trains on a single rank, the baseline: computes the same parts of the batch one after another."""
        found = torch.zeros(2, dtype=torch.float64, device=self.device)
        for part, answers in zip(images.tensor_split(self._parts), labels.tensor_split(self._parts)):
            with self.precision.scope():
                loss, logits = loss_and_logits(self.model(part), answers)
            (loss / self._parts).backward()
            found[0] += loss.detach() / self._parts
            found[1] += logits.detach().argmax(1).eq(answers).sum()
        return found

    def _average_gradients(self):
        gradients = [p.grad for p in self._own.parameters()]
        flat = torch.cat([g.reshape(-1) for g in gradients])
        dist.all_reduce(flat, group=self._equals)
        flat /= self._groups
        for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients])):
            gradient.copy_(mean.view(gradient.shape))

    def _passes(self):
        """Returns the seconds of this step's passes. Returns None if they are not known, for example on a GPU, which computes
        asynchronously."""
        if self.ranks == 1 or self.device.type == "cuda":
            return None
        return {"step/forward_s": self._timed.forward_s.take(), "step/backward_s": self._timed.backward_s.take()}

    def begin_evaluation(self):
        self._distribute()
        super().begin_evaluation()

    def _distribute(self):
        """Copies the parameters and statistics of each stage from the first group to all ranks."""
        if self.ranks == 1:
            return
        with torch.no_grad():
            for stage, blocks in enumerate(self._blocks):
                for tensor in (t for block in blocks for t in (*block.parameters(), *block.buffers())):
                    dist.broadcast(tensor, stage)

    def parameters(self):
        self._distribute()
        if self.ranks > 1 and self.device.type != "cuda":
            self._idle.share = self._idle.ratio(*self.sum_over_ranks(self._idle.sums))
        return super().parameters()

    def stored_model(self):
        return self.model if self.ranks == 1 else self._own

    def state(self):
        state = super().state()
        if self.ranks > 1:
            state["begins"], state["idle"] = self._begins, self._idle.sums
        return state

    def load_state(self, state):
        if self.ranks > 1:
            # This attempt has measured other costs than the one that wrote the checkpoint, and may have divided the model differently.
            self._divide(blocks_of(self.model), state["begins"])
            self.wrapped, self.optimizer = self._own, self.make_optimizer(self.model)
            self._idle.sums = state["idle"]
        super().load_state(state)

    def run_metrics(self):
        if self.ranks == 1:
            return super().run_metrics()
        ideal = pipeline.ideal_bubble(self._stages, self._parts)
        return {**super().run_metrics(), "run/pipeline_bubble": self._idle.share, "run/pipeline_bubble_ideal": ideal}


def _edges(blocks, begins, shape):
    """Returns the shape of the input of each stage, and of the output of the last stage."""
    shapes, x = [], torch.empty(shape, device="meta")
    for i, block in enumerate(copy.deepcopy(nn.ModuleList(blocks)).to("meta")):
        if i in begins:
            shapes.append(x.shape)
        x = block(x)
    return [*shapes, x.shape]


if __name__ == "__main__":
    training.run(PytorchPipeline)
