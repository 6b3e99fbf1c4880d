"""Data-parallel gradient descent on a line, in plain Python: ranks connect, divide each batch, and average their gradients.

docs/users/write-a-training-script.md describes the environment variables and the event file of a rank.
"""
import hashlib
import json
import os
import random
import statistics
import sys
import time
from multiprocessing.connection import Client, Listener

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
MEET_WITHIN = 60  # seconds; without a timeout a missing rank would block the others forever


def tell(event, **more):
    """Appends one line with one write, because readers of the file accept only whole lines."""
    with open(os.environ["SCALELAB_EVENTS"], "a", encoding="utf-8") as events:
        events.write(json.dumps({"time": time.time(), "event": event, **more}) + "\n")


class Group:
    """Connects all ranks: rank 0 listens on a free port and publishes its address in the attempt's directory, the others connect."""

    def __init__(self):
        key = os.environ["SCALELAB_ATTEMPT"].encode()  # authenticates the ranks to each other
        place = os.path.join(os.environ["SCALELAB_ATTEMPT_DIR"], "rank-0.address")
        self.others = []
        if RANK == 0 and RANKS > 1:
            listener = Listener(("", 0), authkey=key)
            with open(place + ".new", "w", encoding="utf-8") as file:
                file.write(f"{os.uname().nodename} {listener.address[1]}")
            os.rename(place + ".new", place)  # atomic
            self.others = [listener.accept() for _ in range(RANKS - 1)]
        elif RANKS > 1:
            deadline = time.monotonic() + MEET_WITHIN
            while not os.path.exists(place):  # polls, because the standard library cannot wait for a file
                if time.monotonic() > deadline:
                    raise RuntimeError(f"rank 0 did not publish its address within {MEET_WITHIN} seconds")
                time.sleep(0.01)
            with open(place, encoding="utf-8") as file:
                host, port = file.read().split()
            self.root = Client((host if host != os.uname().nodename else "localhost", int(port)), authkey=key)

    def average(self, values):
        if RANK > 0:
            self.root.send(values)
            return self.root.recv()
        columns = zip(values, *(other.recv() for other in self.others))
        means = [sum(column) / RANKS for column in columns]
        for other in self.others:
            other.send(means)
        return means


def train(spec):
    # 64-bit integers are strings in protobuf JSON.
    steps, share, rate = int(spec["max_steps"]), spec["batch_per_rank"], spec["learning_rate"]
    tell("start", framework="python", version=sys.version.split()[0], world_size=RANKS, rank=RANK, total_steps=steps)
    group = Group()
    weight, bias, seconds = 0.0, 0.0, []
    begin = time.monotonic()
    for step in range(steps):
        before = time.monotonic()
        # All ranks draw the same batch and each takes its part, so the samples do not depend on the number of ranks.
        draw = random.Random(f"{spec['seed']} {step}")
        points = [(x, 3 * x + 1) for x in (draw.uniform(-1, 1) for _ in range(share * RANKS))]
        mine = points[RANK * share : (RANK + 1) * share]
        errors = [weight * x + bias - y for x, y in mine]
        gradient = [2 * statistics.fmean(e * x for e, (x, _) in zip(errors, mine)), 2 * statistics.fmean(errors)]
        gradient = group.average(gradient)
        weight, bias = weight - rate * gradient[0], bias - rate * gradient[1]
        seconds.append(time.monotonic() - before)
        tell(
            "step",
            epoch=0,
            step=step,
            metrics={"step/total_s": seconds[-1], "train/loss": statistics.fmean(e * e for e in errors)},
        )
    measured = seconds[spec["warmup_steps"] :] or seconds
    metrics = {
        "run/throughput": share * RANKS / statistics.median(measured),
        "run/steps": steps,
        "run/seconds": time.monotonic() - begin,
    }
    # The hash must be equal on all ranks; otherwise the ranks have diverged and the run fails.
    tell("finish", metrics=metrics, parameter_hash=hashlib.sha256(repr((weight, bias)).encode()).hexdigest()[:16])


if __name__ == "__main__":
    try:
        with open(os.environ["SCALELAB_SPEC"], encoding="utf-8") as file:
            train(json.load(file))
    except Exception as error:  # every error must be reported as an event
        tell("error", message=f"{type(error).__name__}: {error}", kind="")
        raise
