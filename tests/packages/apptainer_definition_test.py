"""deploy/apptainer/worker.def: what can be checked without Apptainer, of which Debian 12 has no package."""
import os
import re
import subprocess
import unittest

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
SCRIPTS = ("post", "test", "runscript")


def read(*parts):
    with open(os.path.join(TOP, *parts), encoding="utf-8") as file:
        return file.read()


def definition():
    """Returns the header as a dictionary, and the sections by name."""
    text = re.sub(r"^#.*\n", "", read("deploy", "apptainer", "worker.def"), flags=re.MULTILINE)
    header, *sections = re.split(r"^%(\w+)\n", text, flags=re.MULTILINE)
    return dict(re.findall(r"^(\w+): (.+)$", header, re.MULTILINE)), dict(zip(sections[::2], sections[1::2]))


class ApptainerDefinition(unittest.TestCase):
    def setUp(self):
        self.header, self.sections = definition()

    def test_has_only_sections_of_apptainer(self):
        self.assertEqual(set(self.sections), {"files", "labels", *SCRIPTS})
        self.assertEqual(self.header["Bootstrap"], "debootstrap")

    def test_the_scripts_are_valid(self):
        for name in SCRIPTS:
            result = subprocess.run(["sh", "-n"], input=self.sections[name], capture_output=True, text=True, check=False)
            self.assertEqual((result.returncode, result.stderr), (0, ""), name)

    def test_installs_the_package_that_it_copies(self):
        pattern, folder = self.sections["files"].split()
        self.assertEqual(os.path.dirname(pattern), "build/packages", "the folder of deploy/package")
        self.assertIn(folder + os.path.basename(pattern), self.sections["post"])
        self.assertIn("DEB-DEFAULT", read("cmake", "Packages.cmake"), "the names are PACKAGE_VERSION_ARCHITECTURE.deb")

    def test_names_programs_of_the_package(self):
        packages = read("cmake", "Packages.cmake")
        for program in re.findall(r"\b(?:exec )?(scalelab-\w+)", self.sections["test"] + self.sections["runscript"]):
            self.assertIn(f"install(TARGETS {program} RUNTIME", packages)


if __name__ == "__main__":
    unittest.main()
