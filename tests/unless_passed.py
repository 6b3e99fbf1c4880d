"""Runs a test, unless it has passed before with the same inputs: `unless_passed.py [INPUT...] -- COMMAND...`.

The inputs of a test are:
- the command, the files that it names, and the libraries of the project that these files load;
- each INPUT, which is a file, a folder (all of its files count), or a link (the name of its target counts);
- the installed Debian packages, the model of the processor, the GPUs and the user;
- the environment variables whose names begin with SCALELAB_, OMP or XDG_.

The folder scalelab/passed_tests in the user's cache folder ($XDG_CACHE_HOME or ~/.cache) has one file for each command. The file
contains a hash of the inputs with which the command last passed, and those lines of its output that name skipped parts. Paths in the
top folder of this checkout count without that folder, so that a second checkout with the same files finds the result. If a test fails,
or skips everything (exit status 77), no file is written. With SCALELAB_REPEAT_TESTS=1 the command always runs.

Use this program only for tests whose result depends on nothing but these inputs. The build system Bazel stores results of tests by
the same rule.
"""
import contextlib
import hashlib
import os
import re
import subprocess
import sys
import time

PACKAGES = "/var/lib/dpkg/status"
GPUS = "/proc/driver/nvidia/gpus"
REPEAT = "SCALELAB_REPEAT_TESTS"
SYSTEM = ("/lib", "/usr")  # folders of Debian's packages
TOP = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))


def files_of(path):
    """Returns the paths of all files below a folder, or the path itself if it is a file or a link."""
    if os.path.islink(path) or not os.path.isdir(path):
        return [path] if os.path.lexists(path) else []
    folders = (item for item in os.walk(path) if "__pycache__" not in item[0])
    return sorted(os.path.join(folder, name) for folder, _, names in folders for name in names)


def without_top(text):
    return text.replace(TOP + "/", "")


def records():
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "scalelab", "passed_tests")


def content(path):
    if os.path.islink(path):
        return without_top(os.readlink(path)).encode()
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).digest()


def libraries(program):
    """Returns the libraries that a program loads, except those of Debian's packages; none for a script."""
    loaded = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return [os.path.realpath(path) for path in re.findall(r"^\t(?:.* => )?(/.*) \(0x", loaded, re.M) if not path.startswith(SYSTEM)]


def key_of(inputs, command):
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        processor = sorted({line for line in file if line.startswith(("model name", "flags"))})
    names = sorted(name for name in os.environ if name.startswith(("SCALELAB_", "OMP", "XDG_")) and name != REPEAT)
    variables = [(name, os.environ[name]) for name in names]
    gpus = sorted(os.listdir(GPUS)) if os.path.isdir(GPUS) else []
    key = hashlib.sha256(without_top(repr([command, variables, processor, os.cpu_count(), gpus, os.geteuid()])).encode())
    named = filter(os.path.isfile, command)  # ignore folders in the command, which may be for results
    files = [file for path in [PACKAGES, *inputs, *named] for file in files_of(path)]
    programs = [file for file in files if os.access(file, os.X_OK) and not file.startswith(SYSTEM)]
    for file in [*files, *(library for program in programs for library in libraries(program))]:
        key.update(without_top(file).encode() + b"\0" + content(file))
    return key.hexdigest()


def run(command):
    """Runs a command. Returns its exit status, and the lines of its output about parts that were skipped."""
    skipped = b""
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        for line in process.stdout:
            skipped += line if b"SKIPPED" in line else b""
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
    return process.returncode, skipped.decode(errors="replace")


def main(*arguments):
    split = arguments.index("--")
    inputs, command = list(arguments[:split]), list(arguments[split + 1 :])
    if "--gtest_list_tests" in command:
        os.execvp(command[0], command)
    record = os.path.join(records(), hashlib.sha256(without_top(repr(command)).encode()).hexdigest()[:32])
    key = key_of(inputs, command)
    if os.path.exists(record):
        with open(record, encoding="utf-8") as file:
            parts = file.read().split("\n", 2)
        # A file without three parts is not a record: it may be empty after a power failure.
        if len(parts) == 3 and parts[0] == key and os.environ.get(REPEAT) != "1":
            print(f"{parts[1]} It has not run again, because its inputs are the same. {REPEAT}=1 runs it again.\n{parts[2]}", end="")
            return 0
        with contextlib.suppress(OSError):
            os.remove(record)
    begin = time.time()
    status, skipped = run(command)
    if status == 0 and key_of(inputs, command) == key:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(begin))
        with contextlib.suppress(OSError):  # if the result cannot be kept, the test runs again
            os.makedirs(os.path.dirname(record), exist_ok=True)
            with open(f"{record}.{os.getpid()}", "w", encoding="utf-8") as file:
                file.write(f"{key}\nThis test passed on {when}, in {time.time() - begin:.1f} s.\n{skipped}")
            os.replace(file.name, record)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
