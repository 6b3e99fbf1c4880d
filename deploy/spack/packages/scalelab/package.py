# Copyright 2026 The scalelab authors
# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F403, F405
"""A Spack recipe for scalelab: programs, adapters and man pages below one prefix, for sites that install with Spack.

    spack repo add deploy/spack
    spack install scalelab                  # everything
    spack install scalelab ~trainer         # without LibTorch: client, coordinator and worker of other frameworks
    spack dev-build scalelab@main           # from this checkout

What was checked: that the file is valid Python, and that the options of cmake_args() build and install below a prefix
(`cmake --install`) on Debian 12 with Debian's libraries, which have the lowest versions that are named here. It was not
run by Spack.
"""

import os

from spack.package import *


class Scalelab(CMakePackage):
    """Measures how distributed training scales: a shared service with a coordinator on SQLite, Slurm or local
    allocations, a trainer in C++ with LibTorch, and adapters for the common Python frameworks."""

    homepage = "https://example.org/scalelab"  # the site's own mirror
    git = "file://" + os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "..", ".."))

    license("Apache-2.0")

    version("main", branch="main")

    variant("trainer", default=True, description="Build scalelab-trainer, which needs LibTorch and MPI")

    depends_on("cxx", type="build")
    depends_on("c", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("git", type="build")
    depends_on("gzip", type="build")

    depends_on("grpc@1.51: +shared")
    depends_on("protobuf@3.21:")
    depends_on("abseil-cpp@20220623: cxxstd=20")
    depends_on("re2")
    depends_on("spdlog")
    depends_on("nlohmann-json")
    depends_on("openssl@3:")
    depends_on("sqlite@3.37:")
    depends_on("boost@1.74:")
    depends_on("cli11@2.1:")
    depends_on("yaml-cpp")
    depends_on("libjpeg-turbo")
    depends_on("libpng")
    with when("+trainer"):
        depends_on("py-torch@1.13: ~cuda")
        depends_on("mpi")
        depends_on("openblas threads=pthreads")

    generator("ninja")

    def cmake_args(self):
        arguments = [
            self.define_from_variant("SCALELAB_TRAINER", "trainer"),
            self.define("SCALELAB_TESTS", False),
            self.define("SCALELAB_UNITY", True),
        ]
        if self.spec.satisfies("+trainer"):
            torch = join_path(python_platlib, "torch")
            arguments.append(self.define("SCALELAB_TORCH", join_path(self.spec["py-torch"].prefix, torch)))
        return arguments

    def setup_run_environment(self, env):
        env.prepend_path("PATH", self.prefix.bin)
