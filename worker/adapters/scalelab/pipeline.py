"""Divides a model into stages and a batch into parts, like worker/trainer/strategies/pipeline. Uses only the standard library."""
from .errors import RunError


def stages(spec, ranks):
    """Returns the number of stages of each pipeline."""
    if ranks == 1:
        return 1  # the baseline, without a pipeline
    count = spec.pipeline_stages or ranks
    if ranks % count:
        raise RunError(
            f"pipeline_stages is {count}, which does not divide the run's {ranks} ranks: set it to a divisor of the number of ranks",
            "configuration",
        )
    return count


def check(spec, count, groups):
    """Raises RunError for batches and schedules that torch.distributed.pipelining cannot run."""
    parts, batch = spec.accumulation_steps, spec.global_batch // groups
    if spec.global_batch % groups or batch % parts:
        raise RunError(
            f"accumulation_steps {parts} does not divide the {spec.global_batch / groups:g} samples of a pipeline, and PyTorch's "
            "pipelines need equal parts: use a divisor, or native/pipeline",
            "configuration",
        )
    if spec.pipeline_schedule == "1f1b" and parts < count > 1:
        raise RunError(
            f"PyTorch's 1f1b needs at least as many parts as stages, and accumulation_steps is {parts} with {count} stages: set "
            f"accumulation_steps to {count} or more, or pipeline_schedule to gpipe",
            "configuration",
        )


def ideal_bubble(count, parts):
    """Returns the share of time in which a stage is idle, if all stages take the same time and messages take no time."""
    return (count - 1) / (parts + count - 1)


def divide_by_cost(costs, count):
    """Divides a sequence of blocks into `count` contiguous parts of one or more blocks, and minimizes the largest sum of costs of
    a part. Returns the first block of each part, followed by the number of blocks."""
    until = [0.0]  # until[n]: the sum of the first n costs
    for cost in costs:
        until.append(until[-1] + cost)
    # best[n] is the best division of the first n blocks into `part` parts: (cost of the largest part, first block of each part).
    best = [(total, [0]) for total in until]
    for part in range(1, count):
        best = [
            min(((max(best[begin][0], until[n] - until[begin]), [*best[begin][1], begin]) for begin in range(part, n)), default=None)
            for n in range(len(until))
        ]
    return [*best[-1][1], len(costs)]


class Idle:
    """Adds up the time in which a rank waits for other stages, and the time of its steps."""

    def __init__(self):
        self.sums = [0.0, 0.0]
        self.share = None  # idle share over all ranks; None until it is known

    def add(self, idle, total):
        self.sums = [self.sums[0] + idle, self.sums[1] + total]

    @staticmethod
    def ratio(idle, total):
        return idle / total if total > 0 else None
