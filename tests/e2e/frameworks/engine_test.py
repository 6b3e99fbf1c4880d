"""Runs test modules for an engine: `engine_test.py ENGINE MODULE...`, for example `engine_test.py pytorch/ddp agreement failures`.

All modules run in one process, so that the framework is imported once. If everything is skipped, the exit status is 77.
"""
import sys

import run

if __name__ == "__main__":
    run.main(*(name + "_test" for name in sys.argv[2:]))
