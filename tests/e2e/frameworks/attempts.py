"""Runs attempts of one run, one after another, each rank in a child process: `attempts.py ADAPTER PLAN`.

PLAN is a JSON file with a list of attempts: {directory, ranks, variables, interrupt, damage}. `interrupt` is {rank, step, signal}: the rank
sends itself this signal in this step, counted from 0 over the run. `damage` is true: before the attempt, the newest checkpoint loses
its last byte. The statuses of the ranks are written to status.json in the attempt's directory.

The framework is imported once, before the first fork, because the import takes longer than everything else.
"""
import glob
import json
import os
import runpy
import signal
import sys

adapter = os.path.abspath(sys.argv[1])
with open(sys.argv[2], encoding="utf-8") as _file:
    plan = json.load(_file)
sys.path.insert(0, os.path.dirname(adapter))
from scalelab import checkpoints, training  # noqa: E402

run = training.run
checkpoints.AGREEMENT = 0  # seconds: ranks agree after every step, so that a signal has its effect after the step that it comes in


def interrupted(engine_class, at):
    """Returns the class with a signal in one step."""
    step, load = engine_class.step, engine_class.load
    steps = {"done": 0}

    def load_and_count(self, directory):
        steps["done"] = int(directory.rsplit("-", 1)[1])
        return load(self, directory)

    def step_with_signal(self, *arguments):
        if steps["done"] == at["step"]:
            os.kill(os.getpid(), getattr(signal, at["signal"]))
        steps["done"] += 1
        return step(self, *arguments)

    engine_class.load, engine_class.step = load_and_count, step_with_signal
    return engine_class


def run_rank(engine_class, attempt, rank):
    directory = attempt["directory"]
    os.environ.update(attempt["variables"])
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(attempt["ranks"]), SCALELAB_ATTEMPT_DIR=directory)
    os.environ["SCALELAB_EVENTS"] = os.path.join(directory, f"events-{rank}.jsonl")
    errors = os.open(os.path.join(directory, f"errors-{rank}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(errors, 1)
    os.dup2(errors, 2)
    interrupt = attempt.get("interrupt")
    run(interrupted(engine_class, interrupt) if interrupt and interrupt["rank"] == rank else engine_class)


def damage(checkpoint_directory):
    for newest in sorted(glob.glob(os.path.join(checkpoint_directory, "step-*")))[-1:]:
        path = os.path.join(newest, sorted(name for name in os.listdir(newest) if name.startswith("rank-1"))[-1])
        os.truncate(path, os.path.getsize(path) - 1)


def run_all(engine_class):
    for attempt in plan:
        os.makedirs(attempt["directory"])
        if attempt.get("damage"):
            damage(attempt["variables"]["SCALELAB_CHECKPOINT_DIR"])
        children = []
        for rank in range(attempt["ranks"]):
            child = os.fork()
            if child == 0:
                run_rank(engine_class, attempt, rank)
            children.append(child)
        statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        with open(os.path.join(attempt["directory"], "status.json"), "w", encoding="utf-8") as file:
            json.dump(statuses, file)
    os._exit(0)


training.run = run_all
sys.argv = [adapter]
runpy.run_path(adapter, run_name="__main__")
