// Builds the command that runs Python in a framework's environment, and finds what is missing for it. Used by
// the worker, which starts ranks, and the coordinator, which probes frameworks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/engines.h"
#include "scalelab/v1/worker.pb.h"

namespace scalelab {

// What the container needs in addition to its own files.
struct ContainerNeeds {
  std::vector<std::string> directories;  // directories to mount: absolute paths; empty ones are skipped
  bool gpus = false;
};

// Returns the command that runs Python with `arguments` (a script and its arguments) in the environment:
//
//   bash -lc 'module load MODULES...; exec "$@"' ... apptainer exec [--nv] --bind DIRECTORIES... IMAGE python ...
//
// Parts that the environment does not name are omitted. Pure.
std::vector<std::string> PythonCommand(const scalelab::v1::FrameworkEnvironment& environment,
                                       const std::vector<std::string>& arguments,
                                       const ContainerNeeds& needs);

// A requirement of an engine that this machine does not meet.
struct MissingPart {
  std::string reason;  // "'/frameworks/pytorch/bin/python' does not exist or is not executable"
  std::string fix;     // a command or a phrase: "deploy/frameworks pytorch"
};

// Returns what is missing, or nothing. Checks files only: Python, the container's image and `script`, the
// adapter. Requirements that show only at run time, such as modules, make PythonCommand's command fail.
std::optional<MissingPart> FindMissing(const Engine& engine,
                                       const scalelab::v1::FrameworkEnvironment& environment,
                                       const std::string& script);

}  // namespace scalelab
