// Commands that run Python in a framework's environment, and checks for missing parts of an environment. The
// worker starts ranks with these commands, and the coordinator probes frameworks with them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "catalog/engines.h"

namespace scalelab {

// The environment of an engine's Python. Empty parts are not used.
struct PythonEnvironment {
  std::string venv;                  // folder of a virtual environment
  std::vector<std::string> modules;  // environment modules to load first
  std::string container;             // image for Apptainer
};

// The requirements of a container in addition to Apptainer's defaults.
struct ContainerNeeds {
  std::vector<std::string> directories;  // absolute paths; empty ones are left out
  bool gpus = false;
};

// Returns the command that runs Python with `arguments` (a script and its arguments) in the environment:
//   bash -lc 'module load MODULES...; exec "$@"' ... apptainer exec [--nv] --bind DIRECTORIES... IMAGE python ...
// without the parts that the environment does not use. A pure function.
std::vector<std::string> PythonCommand(const PythonEnvironment& environment,
                                       const std::vector<std::string>& arguments,
                                       const ContainerNeeds& needs);

// Returns the command of deploy/frameworks that makes the environment, for example "deploy/frameworks --cuda
// pytorch". The name of an environment for GPUs ends with "-cuda".
std::string CommandThatMakes(const Engine& engine, const std::string& venv);

// A part that an engine needs and this machine lacks.
struct MissingPart {
  std::string reason;  // "'/frameworks/pytorch/bin/python' is not there"
  std::string fix;     // a command or a change: "deploy/frameworks pytorch"
};

// Returns the first missing part, or nothing. Checks the files: Python, the image of the container, and the
// adapter `script`. Missing modules are detected only when the command runs.
std::optional<MissingPart> FindMissing(const Engine& engine, const PythonEnvironment& environment,
                                       const std::string& script);

}  // namespace scalelab
