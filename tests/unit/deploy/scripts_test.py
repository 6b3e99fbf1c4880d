"""deploy/quickstart and deploy/setup with stand-ins for the programs that they start."""
import os
import pty
import select
import shutil
import signal
import subprocess
import tempfile
import unittest

DEPLOY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "deploy")
SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGTERM)


def accept_signals():
    """Undoes that the caller of the tests may ignore signals: a shell cannot trap a signal that was ignored at its start."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)


class InCheckout(unittest.TestCase):
    """Each test has a copy of the script in a folder, and a folder `bin` that is the first of PATH."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        for name in ("quickstart", "setup", "phase.sh"):
            os.makedirs(self.path("deploy"), exist_ok=True)
            shutil.copy(os.path.join(DEPLOY, name), self.path("deploy"))
        self.environment = {**os.environ, "PATH": self.path("bin") + os.pathsep + os.environ["PATH"]}

    def path(self, name):
        return os.path.join(self.directory, name)

    def program(self, name, text):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\n" + text)
        os.chmod(self.path(name), 0o755)

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
        self.program("build/quickstart/bin/scalelabd", f"exec 9>{self.directory}/service\necho ready\nexec sleep 60\n")
        self.program("build/quickstart/bin/scalelab", f"""case $2 in
  submit) echo studies/1 ;;
  watch) echo watching; exec sleep 60 ;;
  *) echo "$*" >>{self.directory}/calls ;;
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


class Setup(InCheckout):
    def test_apt_asks_no_questions_if_sudo_starts_it(self):
        self.program("bin/id", "echo 1000\n")
        self.program("bin/dpkg-query", "")
        self.program("bin/sudo", f'[ "$1" = -n ] || echo "$*" >>{self.directory}/calls\n')
        subprocess.run([self.path("deploy/setup")], env=self.environment, check=True, capture_output=True, timeout=50)
        for call in self.read("calls").splitlines():
            self.assertRegex(call, "^env DEBIAN_FRONTEND=noninteractive apt-get (update|install) ")
        self.assertEqual(len(self.read("calls").splitlines()), 2)


if __name__ == "__main__":
    unittest.main()
