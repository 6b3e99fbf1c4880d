# Copyright 2026 The scalelab authors
# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F403, F405
"""A Spack recipe for scalelab: programs, adapters and man pages below one prefix, for sites that install with Spack.

    spack repo add deploy/spack
    spack install scalelab                  # everything
    spack install scalelab ~trainer         # without LibTorch: client, coordinator and worker of other frameworks
    spack dev-build scalelab@main           # from this checkout
    spack install scalelab dygraphs=/path/to/dygraph.min.js

The dashboard contains dygraphs 2.2, for which Spack has no package. The variant `dygraphs` names its file dygraph.min.js.
The default is the file of Debian's package libjs-dygraphs; the package `dygraphs` of npm has it in dist/.

What was checked: that the file is valid Python, and that the options of cmake_args() build and install below a prefix
(`cmake --install`) on Debian 12 with Debian's libraries, which have the lowest versions that are named here. It was not
run by Spack.
"""

import os

from spack.package import *

# Maps each name that the CMake files pass to find_package or pkg_check_modules to a package of Spack.
# tests/packages/spack_recipe_test.py compares these names with the CMake files.
LIBRARIES = {
    "gRPC": "grpc@1.51: +shared cxxstd=17",
    "Protobuf": "protobuf@3.21:",
    "absl": "abseil-cpp@20220623: cxxstd=17",  # the standard of gRPC; its types are those of C++20, too
    "re2": "re2",
    "spdlog": "spdlog",
    "nlohmann_json": "nlohmann-json",
    "OpenSSL": "openssl@3:",
    "SQLite3": "sqlite@3.37:",
    "Boost": "boost@1.74:",
    "CLI11": "cli11@2.1:",
    "yaml-cpp": "yaml-cpp",
    "CURL": "curl",
    "libmicrohttpd": "libmicrohttpd",
    "libzstd": "zstd",
    "prometheus-cpp": "prometheus-cpp@1.0:",
    "JPEG": "libjpeg-turbo",
    "PNG": "libpng",
}
TRAINER_LIBRARIES = {"MPI": "mpi"}
# PkgConfig comes with the package pkgconfig below, Threads with the compiler.
WITHOUT_PACKAGE = {"PkgConfig": "", "Threads": ""}


class Scalelab(CMakePackage):
    """Measures how distributed training scales: a shared service with a coordinator on SQLite, Slurm or local
    allocations, a trainer in C++ with LibTorch, and adapters for the common Python frameworks."""

    homepage = "https://example.org/scalelab"  # the site's own mirror
    git = "file://" + os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "..", ".."))

    license("Apache-2.0")

    version("main", branch="main")

    variant("trainer", default=True, description="Build scalelab-trainer, which needs LibTorch and MPI")
    variant(
        "dygraphs",
        default="/usr/share/javascript/dygraphs/dygraph.min.js",
        values=any,
        description="Path of dygraph.min.js for the dashboard",
    )

    depends_on("cxx", type="build")
    depends_on("c", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("git", type="build")
    depends_on("gzip", type="build")

    for library in LIBRARIES.values():
        depends_on(library)
    with when("+trainer"):
        depends_on("py-torch@1.13: ~cuda +custom-protobuf")  # otherwise it needs protobuf 3.13
        depends_on("openblas threads=pthreads")
        for library in TRAINER_LIBRARIES.values():
            depends_on(library)

    generator("ninja")

    def cmake_args(self):
        arguments = [
            self.define_from_variant("SCALELAB_TRAINER", "trainer"),
            self.define("SCALELAB_TESTS", False),
            self.define("SCALELAB_UNITY", True),
            self.define("SCALELAB_DYGRAPHS", self.spec.variants["dygraphs"].value),
        ]
        if self.spec.satisfies("+trainer"):
            packages = self.spec["python"].package.platlib  # relative to the prefix of each package
            arguments.append(self.define("SCALELAB_TORCH", join_path(self.spec["py-torch"].prefix, packages, "torch")))
        return arguments

    def setup_run_environment(self, env):
        env.prepend_path("PATH", self.prefix.bin)
