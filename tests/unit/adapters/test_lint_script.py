"""Tests the rules of deploy/lint for folders, circles of folders, names of files, sources of a library and subjects of commits, in a
temporary repository. Programs such as clang-format are replaced."""
import json
import os
import shutil
import subprocess
import sys
import unittest

import fixture

DEPLOY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "deploy")
PROGRAMS = ("bash", "dirname", "env", "git", "grep", "mktemp", "nproc", "python3", "readlink", "rm", "sed", "sort", "tr", "uniq", "xargs")


@unittest.skipUnless(all(shutil.which(program) for program in PROGRAMS), "git is missing")
class Rules(fixture.InDirectory):
    def setUp(self):
        super().setUp()
        for folder in ("bin", "top", "top/deploy", "top/db", "top/db/docs"):
            os.mkdir(self.path(folder))
        for program in PROGRAMS:
            os.symlink(sys.executable if program == "python3" else shutil.which(program), self.path(f"bin/{program}"))
        for file in ("lint", "phase.sh", "include_circles.py", "named_files.py", "unity_check.py"):
            shutil.copy(os.path.join(DEPLOY, file), self.path("top/deploy"))
        self.write("top/db/store.h", "")
        self.environment = {"PATH": self.path("bin"), "HOME": self.dir, "GIT_CONFIG_NOSYSTEM": "1"}
        self.git("init", "--quiet")
        self.git("config", "user.name", "Test")
        self.git("config", "user.email", "test@example.org")

    def git(self, *arguments):
        subprocess.run(["git", *arguments], cwd=self.path("top"), env=self.environment, check=True, timeout=60)

    def commit(self, subject):
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", subject)

    def lint(self, *arguments):
        """Returns the exit status, the lines of the output that are not about phases, and those that are."""
        done = subprocess.run([self.path("top/deploy/lint"), *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=60, check=False, env=self.environment)
        lines = done.stdout.splitlines()
        phases = [line for line in lines if line.startswith(("==>", "    "))]
        return done.returncode, [line for line in lines if line not in phases], phases

    def test_a_tree_that_keeps_the_rules_is_clean(self):
        for i in range(39):
            self.write(f"top/db/{i}.cc", "")
        self.write("top/README.md", "`db/store.h`, /etc/db/other.h, $HOME/db/other.h, db/*.h, db/docs/, other/file.h and db/store.h.\n")
        self.write("top/db/README.md", "store.h and docs/page.md\n")
        self.write("top/db/docs/page.md", "See ../store.h.\n")
        self.write("top/db/1.cc", '#include "db/generated.h"\nopen("db/other.h");  // see db/store.h:12\n')
        self.write("top/CHANGELOG.md", "Renamed db/old.h.\n")
        self.commit("Begin " + "x" * 100)
        self.commit("ä" * 72)
        self.assertEqual(self.lint()[:2], (0, ["lint: clean"]))

    def test_a_folder_with_41_files_is_found(self):
        for i in range(40):
            self.write(f"top/db/{i}.cc", "")
        self.commit("Begin")
        self.assertEqual(self.lint()[:2], (1, ["db: 41 .h and .cc files; move some to a folder of their own, at most 40 are allowed",
                                               "lint: 1 findings"]))
        os.remove(self.path("top/db/39.cc"))
        self.assertEqual(self.lint()[0], 0)

    def test_folders_that_include_each_other_in_a_circle_are_found(self):
        for folder in ("a", "b", "c", "tests", "tests/unit"):
            os.mkdir(self.path(f"top/{folder}"))
        files = {"a/a.h": '#include "b/b.h"', "b/b.h": "int b;", "c/c.h": '#include "a/a.h"', "c/d.h": '#include "c/c.h"',
                 "a/e.cc": '#include <c/c.h>\n#include "a/a.h"\n// #include "c/c.h"\n#include "c/generated.h"',
                 "tests/test.cc": '#include "tests/unit/test.h"', "tests/unit/test.h": '#include "tests/other.h"', "tests/other.h": ""}
        for name, text in files.items():
            self.write(f"top/{name}", text + "\n")
        self.commit("Begin")
        self.assertEqual(self.lint()[:2], (0, ["lint: clean"]))
        self.write("top/b/b.cc", '#include "b/b.h"\n#include "c/d.h"\n')
        self.assertEqual(self.lint()[:2], (1, ["a -> b -> c -> a: folders include each other in a circle (a/a.h:1, b/b.cc:2, c/c.h:1); "
                                               "remove one of these #include lines", "lint: 1 findings"]))

    def test_names_of_files_that_do_not_exist_are_found(self):
        self.write("top/README.md", "One\n[text](db/gone.md), `db/store.cc`.\n")
        self.write("top/db/store.h", "int a;  // as db/gone.cc does\n")
        gone = "gone.sh"  # the rule applies to this file, too
        self.write("top/deploy/run.sh", f"echo db/output.txt  # like deploy/{gone}\n")
        self.assertEqual(self.lint()[:2], (1, ["README.md:2: there is no file db/gone.md", "README.md:2: there is no file db/store.cc",
                                               "db/store.h:1: there is no file db/gone.cc",
                                               "deploy/run.sh:1: there is no file deploy/gone.sh", "lint: 4 findings"]))

    def test_findings_of_clang_tidy_may_have_a_space_in_the_path(self):
        os.symlink(shutil.which("mkdir"), self.path("bin/mkdir"))
        top = os.path.realpath(self.path("top"))
        os.makedirs(self.path("top/build/dev"))
        os.mkdir(self.path("top/a folder"))
        self.write("top/.gitignore", "build\n")
        self.write("top/build/dev/compile_commands.json", f'[{{"file": "{top}/a folder/x.cc"}}]\n')
        self.write("top/a folder/x.cc", "int a;\n")
        # Its last argument is the file.
        self.write("bin/clang-tidy", f"""#!/bin/sh
for file; do :; done
echo "{top}/$file:1:5: error: variable 'a' is bad [some-check,-warnings-as-errors]"
echo "{top}/$file:1:5: note: it is here"
""", 0o755)
        self.commit("Begin")
        self.assertEqual(self.lint("--all")[:2], (1, ["a folder/x.cc:1:5: error: variable 'a' is bad [some-check,-warnings-as-errors]",
                                                      "lint: 1 findings"]))

    @unittest.skipUnless(shutil.which("clang++"), "clang++ is missing")
    def test_a_name_that_two_sources_of_a_library_define_is_found(self):
        os.symlink(shutil.which("clang++"), self.path("bin/clang++"))
        top = os.path.realpath(self.path("top"))
        os.makedirs(self.path("top/build/dev"))
        self.write("top/.gitignore", "build\n")
        entries = []
        for name, target in (("db/a", "db"), ("db/b", "db"), ("db/c", "other"), ("tests/d", "d")):
            os.makedirs(self.path("top/tests"), exist_ok=True)
            self.write(f"top/{name}.cc", "namespace { constexpr int kMost = 1; }\n")
            command = f"c++ -I{top} -std=c++20 -o {os.path.dirname(name)}/CMakeFiles/{target}.dir/{name}.cc.o -c {top}/{name}.cc"
            entries.append({"file": f"{top}/{name}.cc", "command": command})
        self.write("top/build/dev/compile_commands.json", json.dumps(entries))
        self.commit("Begin")
        finding = "db/b.cc:1: redefinition of 'kMost'; the sources of a library are also compiled together"
        self.assertEqual(self.lint("--all")[:2], (1, [finding, "lint: 1 findings"]))
        self.write("top/db/b.cc", "namespace { constexpr int kLeast = 1; }\n")
        self.assertEqual(self.lint("--all")[:2], (0, ["lint: clean"]))

    def test_long_subjects_since_the_base_are_found(self):
        self.commit("Begin")
        base = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=self.path("top"), env=self.environment, text=True).strip()
        self.commit("x" * 73)
        self.git("checkout", "--quiet", "-b", "side", base)
        self.commit("Go another way")
        self.git("merge", "--quiet", "-m", "y" * 80, "-")
        self.commit("z" * 72)
        self.assertEqual(self.lint()[:2], (0, ["lint: clean"]))
        for arguments in (["--since", base], []):
            status, findings, _ = self.lint(*arguments)
            self.assertEqual((status, len(findings)), (1, 2), findings)
            self.assertRegex(findings[0], "^commit [0-9a-f]+: the subject has 73 characters; at most 72 are allowed$")
            self.git("update-ref", "refs/remotes/origin/main", base)

    def test_a_clone_without_the_base_skips_the_subjects(self):
        self.commit("x" * 100)
        status, findings, phases = self.lint()
        self.assertEqual((status, findings), (0, ["lint: clean"]))
        self.assertIn("    skipped: this clone does not have the commit to compare with", phases)


if __name__ == "__main__":
    unittest.main()
