#!/usr/bin/env python3
"""Checks that the tests find the bugs of planted/bugs.def: mutation testing.

Builds the tests once with -DSCALELAB_PLANTED_BUGS=ON. Without a bug, all suites must pass. With each bug, every suite that
bugs.def names for it must fail. Prints a Markdown table and exits with 1 if a suite did not find its bug.
"""
import argparse
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
BUG = re.compile(r'SCALELAB_BUG\((\w+),\s*"([^"]*)",\s*"([^"]*)"\)')
SIMULATION_SEED = re.compile(r"^seed (\d+), faults:", re.M)
POWER_CUTS = re.compile(r"after (\d+) cuts:")
FAILED_TEST = re.compile(r"^\[  FAILED  \] ([\w./]+)", re.M)
# Suites whose name is not the name of a program, with their program and arguments.
PROGRAMS = {
    "simulation": ["simulation_test", "--gtest_filter=*EverySeedKeepsTheInvariants"],
    "powercut": ["powercut_test", "--gtest_filter=*EveryAcknowledgedCommit*"],
}
TIMEOUT_S = 1800


def read_bugs():
    """Returns (name, suites, text) for each bug."""
    found = BUG.findall((TOP / "planted/bugs.def").read_text())
    return [(name, suites.split(), text) for name, suites, text in found]


def program_of(suite):
    return PROGRAMS.get(suite, [suite])


def build(directory, suites):
    targets = sorted({program_of(suite)[0] for suite in suites})
    options = ["--preset", "dev", "--dir", directory, "-DSCALELAB_TESTS=ON", "-DSCALELAB_TRAINER=OFF"]
    subprocess.run([TOP / "deploy/build", *options, "-DSCALELAB_PLANTED_BUGS=ON", *targets], check=True)


def cpu_seconds():
    """Returns the CPU time of all programs that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run(directory, suite, bug, seeds):
    """Runs a suite with a bug. Returns the exit status (None after a timeout), the output and the seconds of CPU time."""
    program, *arguments = program_of(suite)
    environment = dict(os.environ, SCALELAB_PLANTED_BUG=bug, SCALELAB_SIMULATION_STOP="1")
    environment.setdefault("SCALELAB_SIMULATION_SEEDS", str(seeds))
    environment.pop("SCALELAB_LONG_TESTS", None)  # the short form of the other suites finds their bugs
    begin = cpu_seconds()
    try:
        done = subprocess.run(
            [TOP / directory / "tests" / program, "--gtest_brief=1", *arguments],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT_S, text=True, errors="replace",
        )
        status, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired as expired:
        status, output = None, (expired.stdout or b"").decode(errors="replace")
    return status, output, cpu_seconds() - begin


def how(suite, status, output):
    """Returns how a suite found a bug, in a few words."""
    seed = SIMULATION_SEED.search(output)
    if suite == "simulation" and seed:
        return f"seed {seed.group(1)}"
    cuts = POWER_CUTS.search(output)
    if suite == "powercut" and cuts:
        return f"cut {cuts.group(1)}"
    tests = list(dict.fromkeys(FAILED_TEST.findall(output)))
    if status is None and not tests:
        return f"not ended after {TIMEOUT_S} s"
    if not tests:
        return f"ended by signal {-status}" if status < 0 else f"exit status {status}"
    return tests[0] + (f" and {len(tests) - 1} more" if len(tests) > 1 else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bugs", nargs="*", help="names of bugs (default: all)")
    parser.add_argument("--dir", default="build/planted", help="build folder, relative to the top folder (%(default)s)")
    parser.add_argument("--seeds", type=int, default=2000, help="most seeds of the simulation for a bug (%(default)s)")
    parser.add_argument("--long-only", action="store_true", help="exit with 77 unless SCALELAB_LONG_TESTS is set (for ctest)")
    options = parser.parse_args()
    if options.long_only and not os.environ.get("SCALELAB_LONG_TESTS"):
        return 77
    bugs = read_bugs()
    unknown = set(options.bugs) - {name for name, _, _ in bugs}
    if unknown:
        parser.error(f"planted/bugs.def has no bug {', '.join(sorted(unknown))}")
    bugs = [bug for bug in bugs if not options.bugs or bug[0] in options.bugs]
    suites = sorted({suite for _, names, _ in bugs for suite in names})
    build(options.dir, suites)

    missed = 0
    for suite in suites:
        status, output, seconds = run(options.dir, suite, "", 300)
        print(f"without a bug: {suite} {'passes' if status == 0 else 'FAILS'}, {seconds:.0f} s", flush=True)
        if status != 0:
            print(output[-4000:])
            missed += 1
    print("\n| bug | what it does | found by (seconds of CPU time) |\n|---|---|---|", flush=True)
    for name, names, text in bugs:
        cells = []
        for suite in names:
            status, output, seconds = run(options.dir, suite, name, options.seeds)
            missed += not status
            cells.append(f"{suite}: {how(suite, status, output) if status else '**not found**'} ({seconds:.1f} s)")
        print(f"| {name} | {text} | {'; '.join(cells)} |", flush=True)
    print(f"\n{len(bugs)} bugs, {missed} failures")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
