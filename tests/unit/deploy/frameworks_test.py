"""deploy/frameworks: the reason that it prints if an environment is not usable, and the packages that it finds missing."""
import os
import re
import shutil
import subprocess
import tempfile
import unittest

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "deploy", "frameworks")
# Replaces the Python of an environment. Its arguments are the probe and an engine.
PYTHON = """#!/bin/sh
case $2 in
  good/*) echo '{"engine":"'$2'","usable":true,"reason":""}' ;;
  bad/*) echo '{"engine":"'$2'","usable":false,"reason":"it is not installed"}' ;;
  *) exit 1 ;;
esac
"""


def function(name):
    """Returns the definition of a function of the script."""
    with open(SCRIPT, encoding="utf-8") as file:
        return re.search(rf"^{name}\(\) {{\n.*?^}}\n", file.read(), re.MULTILINE | re.DOTALL).group()


class WhyNot(unittest.TestCase):
    def why_not(self, engines):
        """Returns the exit status and the output of why_not for an environment with these engines."""
        with tempfile.TemporaryDirectory() as directory:
            os.mkdir(directory + "/bin")
            with open(directory + "/bin/python", "w", encoding="utf-8") as file:
                file.write(PYTHON)
            os.chmod(directory + "/bin/python", 0o755)
            script = f"""set -euo pipefail
                declare -A engines=([name]='{engines}')
                python=/usr/bin/python3 adapters=/adapters
                {function("why_not")}
                why=$(why_not {directory} name)
                printf '%s' "$why" """
            done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    def test_usable_engines_have_no_reason(self):
        self.assertEqual(self.why_not("good/1 good/2"), (0, ""))
        self.assertEqual(self.why_not(""), (0, ""))

    def test_the_first_reason_is_printed(self):
        self.assertEqual(self.why_not("good/1 bad/2 bad/3 bad/4"), (0, "bad/2: it is not installed"))

    def test_a_probe_that_fails_is_a_reason(self):
        self.assertEqual(self.why_not("good/1 broken/2"), (0, "broken/2: its probe failed"))


class Need(unittest.TestCase):
    @unittest.skipUnless(os.access("/sbin/ldconfig", os.X_OK), "this system has no ldconfig")
    def test_libraries_are_found_although_the_path_of_a_user_has_no_sbin(self):
        with tempfile.TemporaryDirectory() as directory:
            # A PATH without ldconfig, and a Python that the wheels are for.
            for program in ("bash", "cat"):
                os.symlink(shutil.which(program), f"{directory}/{program}")
            with open(directory + "/python", "w", encoding="utf-8") as file:
                file.write("#!/bin/sh\necho 3 11 x86_64\n")
            os.chmod(directory + "/python", 0o755)
            script = f"""set -euo pipefail
                declare -A horovod=() base=()
                python={directory}/python
                fail() {{ echo "$*"; exit 1; }}
                {function("need")}
                need mxnet"""
            done = subprocess.run([f"{directory}/bash", "-c", script], capture_output=True, text=True, check=False,
                                  env={"PATH": directory})
        present = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
        for library, package in (("libgomp.so.1", "libgomp1"), ("libquadmath.so.0", "libquadmath0")):
            self.assertEqual(package in done.stdout, library not in present, done.stdout)
        self.assertEqual(done.stderr, "")


if __name__ == "__main__":
    unittest.main()
