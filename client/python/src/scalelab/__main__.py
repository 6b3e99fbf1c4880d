"""`python3 -m scalelab export STUDY --format parquet -o DIR`."""
from __future__ import annotations

import argparse
import sys

from scalelab.client import Client
from scalelab.errors import ScalelabError
from scalelab.export import FORMATS, describe, export

# The exit codes of the command `scalelab`, which runs this program. Other errors are 1, and Ctrl-C is 130.
_EXIT_CODES = {"INVALID_ARGUMENT": 2, "OUT_OF_RANGE": 2, "UNAUTHENTICATED": 4, "PERMISSION_DENIED": 4, "UNAVAILABLE": 6,
               "DEADLINE_EXCEEDED": 8}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m scalelab", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("export", help="write runs, metrics and the curve of a study into files")
    command.add_argument("study", metavar="STUDY", help="number, name, or last")
    command.add_argument("--format", required=True, choices=FORMATS)
    command.add_argument("-o", "--directory", required=True, metavar="DIR", help="directory for the files; it is created")
    command.add_argument("--server", help="unix:PATH, HOST:PORT or insecure:HOST:PORT; else as the scalelab command finds it")
    command.add_argument("--token-file", help="token for a server on HOST:PORT")
    command.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS", help="time limit of each call (60)")
    arguments = parser.parse_args()
    try:
        with Client(arguments.server, token_file=arguments.token_file, timeout=arguments.timeout) as client:
            paths = export(client, arguments.study, arguments.format, arguments.directory)
    except KeyboardInterrupt:
        return 130
    except (ScalelabError, ImportError, OSError) as error:
        print(f"scalelab: {error}", file=sys.stderr)
        return _EXIT_CODES.get(error.code, 1) if isinstance(error, ScalelabError) else 1
    print(f"{arguments.directory}: {describe(paths)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
