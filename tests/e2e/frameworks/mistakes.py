"""Runs an adapter once for each specification, each in a child process: `mistakes.py ADAPTER DIRECTORY...`.

A directory holds spec.json and gets events-0.jsonl. The framework is imported once, before the first fork, because the import takes
longer than everything else. The exit status is the number of runs that did not fail. Only for runs that end before the rank joins
the others: a framework that has started threads does not survive a fork.
"""
import os
import runpy
import sys

adapter = os.path.abspath(sys.argv[1])
directories = sys.argv[2:]
sys.path.insert(0, os.path.dirname(adapter))
from scalelab import training  # noqa: E402

run = training.run


def run_all(engine_class):
    succeeded = 0
    for directory in directories:
        child = os.fork()
        if child == 0:
            os.environ["SCALELAB_SPEC"] = os.path.join(directory, "spec.json")
            os.environ["SCALELAB_EVENTS"] = os.path.join(directory, "events-0.jsonl")
            run(engine_class)
        succeeded += os.waitpid(child, 0)[1] == 0
    os._exit(succeeded)


training.run = run_all
sys.argv = [adapter]
runpy.run_path(adapter, run_name="__main__")
