"""Imports an adapter and its framework once, and forks a process for each rank: `imported.py SOCKET ADAPTER [MODULE...]`.

The import takes longer than a short run. A framework that has only been imported has no threads yet, so forking is safe. Each
line of standard input is a request in JSON, and each line of standard output is its response:

{"start": {"environment": {...}, "output": PATH, "wrapper": MODULE or null}}  starts a rank; the response is its process id
{"wait": PID}                                                                  waits for a rank; the response is its exit status
{"wait": null}                                                                 waits for the end of the import; the response is 0

SOCKET is the path of a Unix socket, on which forked_rank.py starts ranks. A connection has one request, the value of "start", and
its response is the exit status of the rank. If the connection ends before, the rank is killed.
"""
import contextlib
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys

socket_path = sys.argv[1]
adapter = os.path.abspath(sys.argv[2])
modules = sys.argv[3:]
sys.path.insert(0, os.path.dirname(adapter))
from scalelab import training  # noqa: E402

run = training.run


def become(engine_class, request):
    """Turns this process into the rank of a request. Does not return."""
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
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(socket_path)
    listener.listen()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of frameworks must not be mixed with responses
    requests = os.fdopen(0, "rb", buffering=0)  # without a buffer, so that the selector sees every line
    events = selectors.DefaultSelector()
    events.register(requests, selectors.EVENT_READ)
    events.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in events.select():
            if key.fileobj is requests:
                line = requests.readline()
                if not line:
                    os._exit(0)
                request = json.loads(line)
                answer = status_of(request["wait"]) if "wait" in request else fork(engine_class, request["start"])
                print(answer, file=answers, flush=True)
            elif key.fileobj is listener:
                connection, _ = listener.accept()
                pid = fork(engine_class, json.loads(connection.makefile("r").readline()))
                ended = os.pidfd_open(pid)
                for file in (connection, ended):
                    events.register(file, selectors.EVENT_READ, (pid, connection, ended))
            else:
                pid, connection, ended = key.data
                if key.fileobj is connection:
                    os.kill(pid, signal.SIGKILL)
                    events.unregister(connection)
                else:
                    with contextlib.suppress(OSError):  # the launcher has killed forked_rank.py
                        connection.sendall(f"{status_of(pid)}\n".encode())
                    events.unregister(ended)
                    if connection in events.get_map():
                        events.unregister(connection)
                    connection.close()
                    os.close(ended)
                    break  # there are no further events of this rank


def status_of(pid):
    return 0 if pid is None else os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def fork(engine_class, request):
    pid = os.fork()
    if pid == 0:
        become(engine_class, request)
    return pid


signal.signal(signal.SIGINT, signal.SIG_IGN)
training.run = serve
sys.argv = [adapter]
runpy.run_path(adapter, run_name="__main__")
