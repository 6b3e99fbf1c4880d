// Running a program in a framework's environment: which command that is, and what is missing for it. For the
// worker, which starts ranks so, and the coordinator, which probes so.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "catalog/engines.h"
#include "scalelab/v1/worker.pb.h"

namespace scalelab {

// What a container must see of the node beside what it sees anyway.
struct ContainerNeeds {
  std::vector<std::string> directories;  // absolute paths; empty ones are left out
  bool gpus = false;
};

// The command that runs Python's `arguments` (a script and what is for it) in the environment:
//   bash -lc 'module load MODULES...; exec "$@"' ... apptainer exec [--nv] --bind DIRECTORIES... IMAGE python
//   ...
// without the parts that it does not name. Pure.
std::vector<std::string> PythonCommand(const scalelab::v1::FrameworkEnvironment& environment,
                                       const std::vector<std::string>& arguments,
                                       const ContainerNeeds& needs);

// Something that an engine needs and this machine lacks.
struct MissingPart {
  std::string reason;  // "'/frameworks/pytorch/bin/python' is not there"
  std::string fix;     // a command or a change: "deploy/frameworks pytorch"
};

// Looks at files: Python, the container's image and `script`, the adapter to be run. What can only be seen by
// running something, such as modules, is told by PythonCommand's own exit.
std::optional<MissingPart> FindMissing(const Engine& engine,
                                       const scalelab::v1::FrameworkEnvironment& environment,
                                       const std::string& script);

}  // namespace scalelab
