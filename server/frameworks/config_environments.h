// The key `environments` of the configuration file: where engines of Python frameworks run, if not in the
// environments of deploy/frameworks.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace YAML {
class Node;
struct Mark;
}  // namespace YAML

namespace scalelab::server {

// One entry, for one engine ("pytorch/ddp") or those of a framework ("tensorflow/*"); the one of the engine
// itself wins.
struct EnvironmentConfig {
  std::string engine;
  // Directory of a virtual environment, absolute. Absent: that of deploy/frameworks, or of a container its
  // own Python. Empty: python3 as the modules bring it.
  std::optional<std::string> venv;
  std::vector<std::string> modules;  // loaded first, in this order
  std::string container;             // image file or address; empty: none
};

// INVALID_ARGUMENT: one sentence that begins with `at` of the place, which is "FILE:LINE:COLUMN".
absl::Status ReadEnvironments(const YAML::Node& node, const std::function<std::string(const YAML::Mark&)>& at,
                              std::vector<EnvironmentConfig>* environments);

}  // namespace scalelab::server
