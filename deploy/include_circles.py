"""Finds folders whose C++ files include each other in a circle.

Usage: deploy/include_circles.py, in the top folder of a checkout. Prints a line for each circle. One folder is one library, and
libraries must not depend on each other in a circle. Folders of tests are not checked, because they are not libraries.
"""
import pathlib
import re
import sys

from named_files import listed_files

SOURCE = re.compile(r"^(?!tests/).*\.(h|cc|cu)$")
INCLUDE = re.compile(r'^#include "([^"]+/[^"/]+)"')


def edges(files):
    """Returns {folder: {other folder: "FILE:LINE" of the first #include of one of its files}}."""
    known, found = set(files), {}
    for file in sorted(filter(SOURCE.search, files)):
        folder = file.rpartition("/")[0]
        for number, line in enumerate(pathlib.Path(file).read_text(errors="replace").splitlines(), 1):
            include = INCLUDE.match(line)
            if include and include[1] in known and include[1].rpartition("/")[0] != folder:
                found.setdefault(folder, {}).setdefault(include[1].rpartition("/")[0], f"{file}:{number}")
    return found


def shortest_circle(graph, start):
    """Returns the folders of a shortest circle through `start`, which is the first and the last of them; [] if there is none."""
    paths, seen = [[start]], set()
    for path in paths:
        for folder in graph.get(path[-1], {}):
            if folder == start:
                return [*path, start]
            if folder not in seen:
                seen.add(folder)
                paths.append([*path, folder])
    return []


def findings(files):
    """Yields a line for each circle. Each folder is in at most one of the lines."""
    graph, reported = edges(files), set()
    for folder in sorted(graph):
        circle = shortest_circle(graph, folder)
        if circle and not reported.intersection(circle):
            reported.update(circle)
            places = ", ".join(graph[a][b] for a, b in zip(circle, circle[1:]))
            yield f"{' -> '.join(circle)}: folders include each other in a circle ({places}); remove one of these #include lines"


if __name__ == "__main__":
    for finding in findings(listed_files()):
        sys.stdout.write(finding + "\n")
