"""Scripts in deploy with stand-ins for the programs that they start."""
import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import tempfile
import unittest

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
DEPLOY = os.path.join(TOP, "deploy")
SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGTERM)


def accept_signals():
    """Undoes that the caller of the tests may ignore signals: a shell cannot trap a signal that was ignored at its start."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)


class InCheckout(unittest.TestCase):
    """Each test has a copy of the scripts in a folder whose path has a space, and a folder `bin` that is the first of PATH. The
    copies take python3 from PATH."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="a checkout ")
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        os.makedirs(self.path("deploy"))
        for name in ("frameworks", "package", "phase.sh", "quickstart", "setup", "test"):
            with open(os.path.join(DEPLOY, name), encoding="utf-8") as file:
                self.write(f"deploy/{name}", file.read().replace("/usr/bin/python3", "python3"))
        self.environment = {**os.environ, "PATH": self.path("bin") + os.pathsep + os.environ["PATH"]}

    def path(self, name):
        return os.path.join(self.directory, name)

    def write(self, name, text):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(self.path(name), 0o755)

    def program(self, name, text):
        self.write(name, "#!/bin/sh\n" + text)

    def read(self, name):
        with open(self.path(name), encoding="utf-8") as file:
            return file.read()


class Quickstart(InCheckout):
    def setUp(self):
        super().setUp()
        self.program("deploy/setup", "")
        self.program("deploy/build", "")
        self.program("study.yaml", "")
        # The service keeps the write end of the pipe open until it ends.
        os.mkfifo(self.path("service"))
        self.program("build/quickstart/bin/scalelabd", f"exec 9>'{self.directory}/service'\necho ready\nexec sleep 60\n")
        self.program("build/quickstart/bin/scalelab", f"""case $2 in
  submit) echo studies/1 ;;
  watch) echo watching; exec sleep "${{WATCH_SECONDS:-60}}" ;;
  *) echo "$*" >>'{self.directory}/calls' ;;
esac
""")
        self.command = [self.path("deploy/quickstart"), "--dir", self.path("data"), "--study", self.path("study.yaml")]
        self.service = os.open(self.path("service"), os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, self.service)

    def assert_stopped(self):
        """The study is cancelled, and no process of the service is left."""
        self.assertEqual(self.read("calls"), "study cancel studies/1 --quiet\n")
        self.assertTrue(select.select([self.service], [], [], 20)[0], "the service still runs")
        self.assertEqual(os.read(self.service, 1), b"")

    def test_ctrl_c_stops_the_service_although_nobody_reads_the_output(self):
        with subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
                              preexec_fn=accept_signals, env=self.environment) as quickstart:
            while quickstart.stdout.readline() != b"watching\n":
                self.assertIsNone(quickstart.poll())
            # As with `deploy/quickstart | tee log`: Ctrl-C ends tee too.
            quickstart.stdout.close()
            os.killpg(quickstart.pid, signal.SIGINT)
            self.assertEqual(quickstart.wait(timeout=40), 130)
        self.assert_stopped()

    def test_the_service_stops_when_the_terminal_is_closed(self):
        pid, terminal = pty.fork()
        if pid == 0:
            accept_signals()
            os.execve(self.command[0], self.command, self.environment)
        output = b""
        while b"watching" not in output:
            output += os.read(terminal, 1000)
        os.close(terminal)
        os.killpg(pid, signal.SIGHUP)  # as the login shell does with its foreground job
        _, status = os.waitpid(pid, 0)
        self.assertEqual(os.waitstatus_to_exitcode(status), 129)
        self.assert_stopped()


    def test_a_shell_accepts_the_printed_commands(self):
        done = subprocess.run(self.command, env={**self.environment, "WATCH_SECONDS": "0"}, capture_output=True, text=True, timeout=50,
                              check=True)
        lines = done.stdout.splitlines()
        begin = lines.index("Next, start the service again and look around:")
        commands = [shlex.split(line) for line in lines[begin + 1 :] if line.startswith("  ")]
        service, client = (self.path(f"build/quickstart/bin/{name}") for name in ("scalelabd", "scalelab"))
        self.assertEqual(commands, [
            [service, "--data", self.path("data"), "&"],
            ["export", "SCALELAB_SERVER=unix:" + self.path("data/scalelab.sock")],
            [client, "study", "list"],
            [client, "run", "list", "studies/1"],
            [client, "curve", "studies/1", "-o", "csv"],
            [client, "study", "plan", "FILE"],
        ])


class Setup(InCheckout):
    def test_apt_asks_no_questions_if_sudo_starts_it(self):
        self.program("bin/id", "echo 1000\n")
        self.program("bin/dpkg-query", "")
        self.program("bin/sudo", f'[ "$1" = -n ] || echo "$*" >>"{self.directory}/calls"\n')
        subprocess.run([self.path("deploy/setup")], env=self.environment, check=True, capture_output=True, timeout=50)
        for call in self.read("calls").splitlines():
            self.assertRegex(call, "^env DEBIAN_FRONTEND=noninteractive apt-get (update|install) ")
        self.assertEqual(len(self.read("calls").splitlines()), 2)


class Interrupt(InCheckout):
    """Ctrl-C while a program runs that handles it and exits with status 1, as pip does."""

    def setUp(self):
        super().setUp()
        os.mkfifo(self.path("running"))
        self.slow = f"""echo call >>'{self.directory}/calls'
trap 'exit 1' INT
echo begin >'{self.directory}/running'
while :; do sleep 0.1; done
"""
        self.program("bin/pip", self.slow)
        # Makes environments whose pip is the one above.
        self.program("bin/python3", f"""case "$*" in
  *platform*) echo 3 11 x86_64 ;;
  "-m pip "*) exec pip ;;
  "-m venv "*) mkdir -p "$3/bin"; cp '{self.directory}/bin/pip' "$3/bin/pip" ;;
esac
""")
        shutil.copytree(os.path.join(DEPLOY, "requirements"), self.path("deploy/requirements"))
        self.environment["SCALELAB_FRAMEWORKS"] = self.path("frameworks")

    def assert_stops(self, *command):
        with subprocess.Popen([self.path(command[0]), *command[1:]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              start_new_session=True, preexec_fn=accept_signals, env=self.environment) as script:
            try:
                with open(self.path("running"), encoding="utf-8") as running:
                    self.assertEqual(running.readline(), "begin\n")
                    os.killpg(script.pid, signal.SIGINT)
                    self.assertEqual(script.wait(timeout=20), 130)
            finally:
                try:
                    os.killpg(script.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        self.assertEqual(self.read("calls"), "call\n")

    def test_frameworks_stops(self):
        self.assert_stops("deploy/frameworks", "keras-jax", "keras-tensorflow")

    def test_setup_stops(self):
        self.program("bin/dpkg-query", 'for package; do echo "$package installed"; done\n')
        self.assert_stops("deploy/setup", "--tests", "--lint")

    def test_test_stops(self):
        for name in ("deploy/setup", "deploy/build", "deploy/lint"):
            self.program(name, "")
        self.program("deploy/frameworks", self.slow)
        self.program("bin/ctest", f"echo ctest >>'{self.directory}/calls'\n")
        self.assert_stops("deploy/test")


class Umask(InCheckout):
    """All users can read what the scripts make, whatever the umask of the caller is."""

    def run_script(self, name, *arguments):
        subprocess.run([self.path(name), *arguments], env=self.environment, check=True, capture_output=True, timeout=50, umask=0o077)

    def test_packages(self):
        for name in ("deploy/build", "bin/dpkg-shlibdeps", "bin/fakeroot", "bin/file", "bin/python3", "bin/dpkg-deb"):
            self.program(name, "")
        # Its arguments are --config FILE -B DIR.
        self.program("bin/cpack", f"""umask >'{self.directory}/mask'
mkdir -p "$4"
touch "$4/scalelab-client_1.0-1_amd64.deb"
""")
        self.run_script("deploy/package", "--no-lintian")
        self.assertEqual(self.read("mask"), "0022\n")

    def test_environments(self):
        self.program("bin/empty", "")
        self.program("bin/python3", f"""case "$*" in
  *platform*) echo 3 11 x86_64 ;;
  "-m venv "*) mkdir -p "$3/bin"; cp '{self.directory}/bin/empty' "$3/bin/pip"; cp "$3/bin/pip" "$3/bin/python" ;;
esac
""")
        shutil.copytree(os.path.join(DEPLOY, "requirements"), self.path("deploy/requirements"))
        self.environment["SCALELAB_FRAMEWORKS"] = self.path("frameworks")
        self.run_script("deploy/frameworks", "keras-jax")
        for name in ("frameworks", "frameworks/keras-jax", "frameworks/keras-jax/bin"):
            self.assertEqual(os.stat(self.path(name)).st_mode & 0o777, 0o755, name)


class Limits(InCheckout):
    """How many jobs run at once."""

    def print(self, command, **variables):
        """Returns what a command prints that uses functions of phase.sh."""
        script = f". '{self.directory}/deploy/phase.sh'; {command}"
        return subprocess.run(["bash", "-euo", "pipefail", "-c", script], env={**self.environment, **variables}, capture_output=True,
                              text=True, timeout=50, check=True).stdout.strip()

    def memory(self, group, limits):
        """Returns the memory on a machine with 8 GiB available, in this control group, with these limits of groups."""
        name = os.path.basename(tempfile.mkdtemp(dir=self.directory))
        self.write(f"{name}/proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n")
        self.write(f"{name}/proc/self/cgroup", f"4:memory:/old\n{group}\n")
        for folder, limit in limits.items():
            self.write(f"{name}/sys/fs/cgroup{folder}/memory.max", f"{limit}\n")
        # The function reads these files instead of those of this machine.
        functions = self.read("deploy/phase.sh")
        for folder in ("/proc/", "/sys/"):
            self.assertIn(folder, functions)
            functions = functions.replace(folder, folder[1:])
        self.write(f"{name}/phase.sh", functions)
        return int(self.print(f"cd '{self.directory}/{name}'; . ./phase.sh; memory_mib"))

    def test_memory_is_limited_by_the_control_group_and_its_ancestors(self):
        gib = 1 << 30
        for expected, group, limits in (
            (8192, "", {}),
            (8192, "0::/", {}),
            (2048, "0::/", {"": 2 * gib}),
            (8192, "0::/a/b", {"/a": "max", "/a/b": "max"}),
            (8192, "0::/a/b", {"/a": 9 * gib}),
            (3072, "0::/a/b c", {"/a": 4 * gib, "/a/b c": 3 * gib}),
            (3072, "0::/a/b", {"": "max", "/a": 3 * gib, "/a/b": 4 * gib}),
            (8192, "0::/a/b", {"/c": gib}),
        ):
            with self.subTest(group=group, limits=limits):
                self.assertEqual(self.memory(group, limits), expected)

    def test_settings_of_openmp_do_not_change_the_number_of_cores(self):
        cores = str(len(os.sched_getaffinity(0)))
        self.assertEqual(self.print("core_count", OMP_NUM_THREADS="77", OMP_THREAD_LIMIT="1"), cores)

    def test_jobs_are_limited_by_cores_and_memory(self):
        for memory, expected in ((100, 1), (3000, 2), (100000, 4)):
            functions = f"memory_mib() {{ echo {memory}; }}; core_count() {{ echo 4; }}"
            self.assertEqual(self.print(f"{functions}; job_count 1500"), str(expected))

    def test_slots_of_tests_are_limited_by_cores_and_memory(self):
        for name in ("deploy/setup", "deploy/build", "deploy/lint", "deploy/frameworks"):
            self.program(name, "")
        self.program("bin/ctest", f"echo \"$*\" >'{self.directory}/arguments'\n")
        functions = self.read("deploy/phase.sh")
        for memory, expected in ((1000, 2), (4000, 3), (22000, 6)):
            self.write("deploy/phase.sh", f"{functions}\nmemory_mib() {{ echo {memory}; }}\ncore_count() {{ echo 2; }}\n")
            subprocess.run([self.path("deploy/test")], env=self.environment, check=True, capture_output=True, timeout=50)
            self.assertIn(f" --parallel {expected}\n", self.read("arguments"))


class Preinst(InCheckout):
    """The maintainer script that makes a backup before an upgrade."""

    def has_data(self, text):
        """Returns whether the script finds a database with this configuration."""
        with open(os.path.join(DEPLOY, "packages", "server.preinst"), encoding="utf-8") as file:
            function = re.search(r"^has_data\(\) {\n.*?^}\n", file.read(), re.MULTILINE | re.DOTALL).group()
        self.write("scalelabd.yaml", text)
        function = function.replace("/etc/scalelab/scalelabd.yaml", '"$0"')
        return subprocess.run(["sh", "-ec", function + "has_data", self.path("scalelabd.yaml")], check=False).returncode == 0

    def test_the_path_of_the_data_may_have_a_space(self):
        self.write("my data/scalelab.db", "x")
        path = self.path("my data")
        for value in (path, f'"{path}"', f"'{path}'", f"{path}  ", f"{path}\t# a comment", f'"{path}" # a comment'):
            self.assertTrue(self.has_data(f"# data: /nowhere\ndata: {value}\nlisten: []\n"), value)
        self.assertFalse(self.has_data(f"data: {path}2\n"))

    @unittest.skipIf(os.path.exists("/var/lib/scalelab/scalelab.db"), "this machine has a database of the service")
    def test_without_a_path_the_default_counts(self):
        for text in ("", "data: # a comment\n", "other:\n  data: /\n"):
            self.assertFalse(self.has_data(text), text)


@unittest.skipUnless(shutil.which("cmake"), "cmake is not installed")
class UnusedLibraries(InCheckout):
    def test_readelf_prints_english(self):
        self.program("bin/readelf", f"echo \"$LC_ALL\" >'{self.directory}/language'\necho 'Shared library: [libc.so.6]'\n")
        self.write("script.cmake", f"""cmake_minimum_required(VERSION 3.25)
set(CMAKE_READELF "{self.directory}/bin/readelf")
include("{os.path.join(TOP, 'cmake', 'UnusedLibraries.cmake')}")
scalelab_empty_unused_libraries(library "^libopencv" "{self.directory}/links")
""")
        subprocess.run(["cmake", "-P", self.path("script.cmake")], env={**self.environment, "LC_ALL": "de_DE.UTF-8"}, check=True,
                       capture_output=True, timeout=50)
        self.assertEqual(self.read("language"), "C\n")


if __name__ == "__main__":
    unittest.main()
