"""deploy/spack: the recipe has every library that the build requires."""
import ast
import os
import re
import unittest

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
RECIPE = os.path.join(TOP, "deploy", "spack", "packages", "scalelab", "package.py")
# Folders of the top folder that the recipe does not build, and folders of builds.
NOT_BUILT = ("tests", "build", ".git")
# Packages that only SCALELAB_CUDA needs, which the recipe does not set.
OF_OTHER_OPTIONS = {"CUDAToolkit"}


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def cmake_files():
    for folder, folders, names in os.walk(TOP):
        if os.path.samefile(folder, TOP):
            folders[:] = [name for name in folders if name not in NOT_BUILT]
        for name in names:
            if name == "CMakeLists.txt" or name.endswith(".cmake"):
                yield os.path.join(folder, name)


def required_libraries():
    """Returns the names of the packages that find_package and pkg_check_modules require."""
    names = set()
    for path in cmake_files():
        text = re.sub(r"#.*", "", read(path))
        for arguments in re.findall(r"\b(?:find_package|pkg_check_modules)\(([^)]*)\)", text):
            words = arguments.split()
            if "REQUIRED" in words:
                names.add(words[-1] if "IMPORTED_TARGET" in words else words[0])
    return names


def tables():
    """Returns the tables of the recipe: from the name in CMake to the package of Spack."""
    found = {}
    for node in ast.walk(ast.parse(read(RECIPE))):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = ast.literal_eval(node.value)
    return found


class SpackRecipe(unittest.TestCase):
    def test_has_every_required_library_and_no_other(self):
        found = tables()
        names = {**found["LIBRARIES"], **found["TRAINER_LIBRARIES"], **found["WITHOUT_PACKAGE"]}
        required = required_libraries()
        self.assertIn("gRPC", required)
        self.assertEqual(required - OF_OTHER_OPTIONS, set(names))

    def test_sets_the_paths_of_files_that_are_not_in_every_system(self):
        for path in cmake_files():
            for name in re.findall(r"\bset\((\w+)[^)]*\bCACHE FILEPATH\b", read(path)):
                self.assertIn(f'self.define("{name}"', read(RECIPE))


if __name__ == "__main__":
    unittest.main()
