"""Runs an adapter that a test has changed. For the modules of this folder whose change() changes adapters."""
import os
import runpy
import sys


def main(change):
    """Runs the adapter whose path is the first argument of this program. Calls `change` first, which may import modules of
    worker/adapters."""
    adapter = os.path.abspath(sys.argv[1])
    sys.path.insert(0, os.path.dirname(adapter))
    change()
    sys.argv = [adapter]
    runpy.run_path(adapter, run_name="__main__")
