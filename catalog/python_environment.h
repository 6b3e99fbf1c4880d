// Commands that run Python in a framework's environment, and what such an environment lacks. The worker starts ranks
// this way; the coordinator probes frameworks this way.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "catalog/engines.h"

namespace scalelab {

// Where the Python of an engine comes from. Parts that are empty are not used.
struct PythonEnvironment {
  std::string venv;                  // folder of a virtual environment
  std::vector<std::string> modules;  // environment modules to load first
  std::string container;             // image for Apptainer
};

// What a container needs from the node in addition to Apptainer's defaults.
struct ContainerNeeds {
  std::vector<std::string> directories;  // absolute paths; empty ones are left out
  bool gpus = false;
};

// Returns the command that runs Python with `arguments` (a script and its arguments) in the environment:
//   bash -lc 'module load MODULES...; exec "$@"' ... apptainer exec [--nv] --bind DIRECTORIES... IMAGE python ...
// without the parts that the environment does not use. Pure.
std::vector<std::string> PythonCommand(const PythonEnvironment& environment,
                                       const std::vector<std::string>& arguments,
                                       const ContainerNeeds& needs);

// Returns the command that makes the environment of deploy/frameworks: "deploy/frameworks --cuda pytorch" if `venv` is one
// for GPUs, which is named after the engine's environment with "-cuda".
std::string CommandThatMakes(const Engine& engine, const std::string& venv);

// A part that an engine needs and this machine lacks.
struct MissingPart {
  std::string reason;  // "'/frameworks/pytorch/bin/python' is not there"
  std::string fix;     // a command or a change: "deploy/frameworks pytorch"
};

// Returns the first missing part, or nothing. Looks at files: Python, the image of the container and `script`, the
// adapter to run. Missing modules only show when the command runs.
std::optional<MissingPart> FindMissing(const Engine& engine, const PythonEnvironment& environment,
                                       const std::string& script);

}  // namespace scalelab
