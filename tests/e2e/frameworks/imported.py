"""Imports an adapter and its framework once, and forks a process for each rank: `imported.py ADAPTER [MODULE...]`.

The import takes longer than a short run. A framework that has only been imported has no threads yet, so it survives a fork. Each line
of standard input is a request as JSON, each line of standard output its answer:

{"start": {"environment": {...}, "output": PATH, "wrapper": MODULE or null}}  starts a rank; the answer is its process id
{"wait": PID}                                                                  waits for a rank; the answer is its exit status
"""
import importlib
import json
import os
import runpy
import signal
import sys

adapter = os.path.abspath(sys.argv[1])
modules = sys.argv[2:]
sys.path.insert(0, os.path.dirname(adapter))
from scalelab import training  # noqa: E402

run = training.run


def become(engine_class, request):
    """Makes this process the rank of a request. Does not return."""
    os.setsid()
    os.environ.clear()
    os.environ.update(request["environment"])
    output = os.open(request["output"], os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    training.run = run
    if request["wrapper"]:
        importlib.import_module(request["wrapper"]).change()
    training.run(engine_class)


def serve(engine_class):
    for name in modules:
        importlib.import_module(name)
    if len(os.listdir("/proc/self/task")) > 1:
        sys.exit(f"{adapter}: an import has started threads, which a fork would not copy: start a process for each rank instead")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what frameworks print must not get among the answers
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
        else:
            answer = os.fork()
            if answer == 0:
                become(engine_class, request["start"])
        print(answer, file=answers, flush=True)
    os._exit(0)


signal.signal(signal.SIGINT, signal.SIG_IGN)
training.run = serve
sys.argv = [adapter]
runpy.run_path(adapter, run_name="__main__")
