"""Builds the package, with modules that protoc generates from the service's .proto files.

Needs the whole source tree, because the .proto files and the version are outside of this folder. Uses the grpcio-tools of the
environment, or else protoc and grpc_python_plugin (Debian packages protobuf-compiler and protobuf-compiler-grpc).
"""
import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys

from setuptools import setup
from setuptools.command.build_py import build_py

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
PROTOS = TOP / "proto"


def protoc():
    """Returns the command that runs protoc with the plugin for gRPC."""
    if importlib.util.find_spec("grpc_tools"):
        return [sys.executable, "-m", "grpc_tools.protoc"]
    program, plugin = shutil.which("protoc"), shutil.which("grpc_python_plugin")
    if not program or not plugin:
        sys.exit("setup.py: the API cannot be generated: install grpcio-tools from PyPI, or protobuf-compiler-grpc from Debian")
    return [program, f"--plugin=protoc-gen-grpc_python={plugin}"]


class BuildWithApi(build_py):
    def run(self):
        super().run()
        target = pathlib.Path(self.build_lib).resolve()
        files = sorted(str(path) for path in PROTOS.glob("scalelab/v1/*.proto"))
        outputs = [f"--{kind}_out={target}" for kind in ("python", "pyi", "grpc_python")]
        subprocess.run([*protoc(), f"-I{PROTOS}", *outputs, *files], check=True)
        (target / "scalelab" / "v1" / "__init__.py").write_text('"""The API of the service, generated from proto/scalelab/v1."""\n')


def version():
    text = (TOP / "CMakeLists.txt").read_text(encoding="utf-8")
    return re.search(r"project\(scalelab VERSION (\S+)", text).group(1)


setup(version=version(), cmdclass={"build_py": BuildWithApi})
