"""Checks that the sources of a library also compile together: `unity_check.py DATABASE FILE...`.

The presets quickstart and release compile up to 20 sources of a library as one translation unit (CMake's UNITY_BUILD). The preset
dev compiles each source alone, so it also accepts two sources that define one name in their unnamed namespaces. DATABASE is the
compile_commands.json of build/dev. Each FILE is a source that has changed. For each library with such a source, clang++ reads all of
its sources together. Prints a finding for each name with two definitions.
"""
import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

BATCH = 20  # UNITY_BUILD_BATCH_SIZE in cmake/Options.cmake
REPEATED = re.compile(r"^(/.*:\d+):\d+: error: (redefinition of .*|.* is ambiguous.*)$", re.M)


def flags_of(command):
    """Returns those arguments of a command that decide how clang++ understands the source."""
    words = shlex.split(command)
    flags = []
    for i, word in enumerate(words):
        if word == "-isystem":
            flags += [word, words[i + 1]]
        elif word.startswith(("-I", "-D", "-std=")):
            flags.append(word)
    return tuple(flags)


def libraries(database):
    """Returns the sources by target and flags, in the order of the build. Sources with other flags, or without the precompiled header,
    are not compiled together."""
    found = {}
    for entry in database:
        command = entry["command"]
        target = re.search(r"-o (\S+)/CMakeFiles/([^/]+)\.dir/", command)
        if target and not target[1].startswith("tests/"):
            found.setdefault((target[2], "cmake_pch" in command, flags_of(command)), []).append(entry["file"])
    return found


def check(sources, flags):
    """Returns the names with two definitions as lines of text."""
    with tempfile.NamedTemporaryFile("w", suffix=".cc") as unit:
        unit.writelines(f'#include "{source}"\n' for source in sources)
        unit.flush()
        done = subprocess.run(["clang++", "-fsyntax-only", "-w", "-ferror-limit=0", *flags, unit.name], stderr=subprocess.PIPE,
                              text=True, check=False)  # fmt: skip
    return [f"{place}: {what}; the sources of a library are also compiled together" for place, what in REPEATED.findall(done.stderr)]


def main(path, *changed):
    with open(path, encoding="utf-8") as file:
        found = libraries(json.load(file))
    changed = {os.path.realpath(name) for name in changed}
    batches = []
    for (_, _, flags), sources in found.items():
        for begin in range(0, len(sources), BATCH):
            batch = sources[begin : begin + BATCH]
            if len(batch) > 1 and changed.intersection(batch):
                batches.append((batch, flags))
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for findings in pool.map(lambda batch: check(*batch), batches):
            for finding in findings:
                print(finding.removeprefix(os.getcwd() + "/"))


if __name__ == "__main__":
    main(*sys.argv[1:])
