"""Starts a rank in a process of imported.py, for launchers such as mpirun: `forked_rank.py SOCKET OUTPUT [WRAPPER]`.

The rank gets the environment of this process. This process exits with the status of the rank. If the launcher kills this process, the
rank is killed too.
"""
import json
import os
import signal
import socket
import sys

with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
    connection.connect(sys.argv[1])
    request = {"environment": dict(os.environ), "output": sys.argv[2], "wrapper": sys.argv[3] if len(sys.argv) > 3 else None}
    connection.sendall((json.dumps(request) + "\n").encode())
    answer = connection.makefile("r").readline()
status = int(answer or 1)
if status < 0:
    signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
sys.exit(status)
