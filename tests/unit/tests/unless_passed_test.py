"""tests/unless_passed.py: when a test runs again, and when its result is kept."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "unless_passed.py")


class UnlessPassed(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        self.write("inputs/data", "1")
        self.write("inputs/more/data", "1")
        self.write("elsewhere", "1")
        self.write("program", 'echo run >>"$0.runs"; exit "$(cat "$0.status")"\n')
        self.write("program.status", "0")
        os.symlink("version-1", os.path.join(self.directory, "link"))

    def write(self, name, text):
        path = os.path.join(self.directory, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def environment(self):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SCALELAB_")}
        return {**kept, "XDG_CACHE_HOME": self.directory}

    def start(self, *arguments, **variables):
        """Runs the test. Returns its exit status, whether it has run, and the output."""
        runs = os.path.join(self.directory, "program.runs")
        before = os.path.getsize(runs) if os.path.exists(runs) else 0
        names = [os.path.join(self.directory, name) for name in ("inputs", "link", "absent")]
        command = ["sh", os.path.join(self.directory, "program"), *arguments]
        done = subprocess.run([sys.executable, "-B", SCRIPT, *names, "--", *command], env={**self.environment(), **variables},
                              capture_output=True, text=True, check=False)  # fmt: skip
        self.assertEqual(done.stderr, "")
        return done.returncode, os.path.exists(runs) and os.path.getsize(runs) > before, done.stdout

    def assert_runs(self, *arguments, **variables):
        self.assertEqual(self.start(*arguments, **variables)[:2], (0, True))

    def assert_kept(self, *arguments, **variables):
        status, ran, output = self.start(*arguments, **variables)
        self.assertEqual((status, ran), (0, False))
        self.assertRegex(output, "^This test passed on 2.*, in [0-9.]+ s. It has not run again, because its inputs are the same.")
        return output

    def test_a_test_that_passed_runs_once(self):
        self.assert_runs()
        self.assert_kept()
        self.write("elsewhere", "2")
        self.assert_kept()

    def test_a_test_runs_again_when_an_input_changes(self):
        changes = {
            "a file": lambda: self.write("inputs/more/data", "2"),
            "a new file": lambda: self.write("inputs/new", ""),
            "a file that is gone": lambda: os.remove(os.path.join(self.directory, "inputs", "data")),
            "an input that was absent": lambda: self.write("absent", ""),
            "the target of a link": self.relink,
            "the program": lambda: self.write("program", ': ; echo run >>"$0.runs"\n'),
        }
        self.assert_runs()
        for what, change in changes.items():
            with self.subTest(what):
                self.assert_kept()
                change()
                self.assert_runs()

    def relink(self):
        os.remove(os.path.join(self.directory, "link"))
        os.symlink("version-2", os.path.join(self.directory, "link"))

    def test_arguments_and_variables_are_inputs(self):
        self.assert_runs()
        self.assert_runs("--more")
        self.assert_kept("--more")
        self.assert_runs(SCALELAB_LONG_TESTS="1")
        self.assert_kept(SCALELAB_LONG_TESTS="1")

    def test_a_failure_is_not_kept(self):
        self.write("program.status", "3")
        for _ in range(2):
            self.assertEqual(self.start()[:2], (3, True))
        self.write("program.status", "0")
        self.assert_runs()
        self.write("program.status", "3")  # no input
        self.assertEqual(self.start(SCALELAB_REPEAT_TESTS="1")[:2], (3, True))
        self.assertEqual(self.start()[:2], (3, True))

    def test_a_skipped_test_is_not_kept(self):
        self.write("program.status", "77")
        for _ in range(2):
            self.assertEqual(self.start()[:2], (77, True))

    def test_a_skipped_part_is_printed_again(self):
        self.write("program", 'echo run >>"$0.runs"; echo first; echo "[  SKIPPED ] A.Case"; echo last\n')
        self.assert_runs()
        self.assertRegex(self.assert_kept(), r"again\.\n\[  SKIPPED \] A\.Case\n$")

    def test_a_test_can_be_repeated(self):
        self.assert_runs()
        self.assert_runs(SCALELAB_REPEAT_TESTS="1")
        self.assert_kept()

    def test_checkouts_share_results(self):
        def run(checkout):
            top = os.path.join(self.directory, checkout)
            command = [os.path.join(top, "inputs"), "--", "sh", os.path.join(top, "program")]
            done = subprocess.run([sys.executable, "-B", os.path.join(top, "tests", "unless_passed.py"), *command],
                                  env=self.environment(), capture_output=True, text=True, check=True)  # fmt: skip
            return "not run again" in done.stdout

        for checkout in ("first", "second"):
            os.makedirs(os.path.join(self.directory, checkout, "tests"))
            shutil.copy(SCRIPT, os.path.join(self.directory, checkout, "tests"))
            self.write(f"{checkout}/program", ":\n")
            self.write(f"{checkout}/inputs/data", "1")
            os.symlink(os.path.join(self.directory, checkout, "program"), os.path.join(self.directory, checkout, "inputs", "link"))
        self.assertEqual([run("first"), run("second"), run("first")], [False, True, True])
        self.write("second/inputs/data", "2")
        self.assertEqual([run("second"), run("first")], [False, False])

    def test_a_result_that_cannot_be_kept_is_no_failure(self):
        self.write("scalelab", "a file in the place of the folder")
        for _ in range(2):
            self.assert_runs()

    def test_an_input_that_changes_meanwhile_is_noticed(self):
        self.write("program", f'echo run >>"$0.runs"; echo more >>{self.directory}/inputs/data\n')
        for _ in range(2):
            self.assert_runs()

    def test_a_folder_in_the_command_is_no_input(self):
        self.write("results/old", "1")
        results = os.path.join(self.directory, "results")
        self.write("program", f'echo run >>"$0.runs"; date >>{results}/new\n')
        self.assert_runs(results)
        self.assert_kept(results)

    def test_a_signal_is_a_failure(self):
        self.write("program", 'echo run >>"$0.runs"; kill -9 $$\n')
        for _ in range(2):
            self.assertEqual(self.start()[:2], (137, True))

    def test_an_empty_record_is_ignored(self):
        self.assert_runs()
        (record,) = os.listdir(os.path.join(self.directory, "scalelab", "passed_tests"))
        self.write(f"scalelab/passed_tests/{record}", "")
        self.assert_runs()
        self.assert_kept()

    @unittest.skipUnless(shutil.which("gcc"), "needs a compiler")
    def test_libraries_of_a_program_are_inputs(self):
        self.check_libraries("folder")

    @unittest.skipUnless(shutil.which("gcc"), "needs a compiler")
    def test_the_path_of_a_library_may_have_a_space(self):
        self.check_libraries("a folder")

    def check_libraries(self, folder):
        os.mkdir(os.path.join(self.directory, folder))
        path = lambda name: os.path.join(self.directory, folder, name)  # noqa: E731

        def build(value):
            self.write(f"{folder}/part.c", f"int part(void) {{ return {value}; }}\n")
            subprocess.run(["gcc", "-shared", "-fPIC", "-o", path("libpart.so"), path("part.c")], check=True)

        build(1)
        self.write(f"{folder}/main.c", "int part(void);\nint main(void) { return part() < 1; }\n")
        subprocess.run(["gcc", "-o", path("main"), path("main.c"), path("libpart.so"), f"-Wl,-rpath,{path('')}"], check=True)
        run = lambda: subprocess.run([sys.executable, "-B", SCRIPT, "--", path("main")], env=self.environment(),  # noqa: E731
                                     capture_output=True, text=True, check=True).stdout  # fmt: skip
        self.assertEqual(run(), "")
        self.assertIn("not run again", run())
        build(2)
        self.assertEqual(run(), "")


if __name__ == "__main__":
    unittest.main()
