// Parses the key `environments` of the configuration file: engines of Python frameworks that do not run in
// the environments of deploy/frameworks.
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

// One entry, for one engine ("pytorch/ddp") or all engines of a framework ("tensorflow/*"). An entry for the
// engine takes precedence over one for its framework.
struct EnvironmentConfig {
  std::string engine;
  // Absolute path of a virtual environment. If absent, the engine uses the environment of deploy/frameworks,
  // or with a container the Python in the container. If empty, it uses the python3 of the modules.
  std::optional<std::string> venv;
  std::vector<std::string> modules;  // loaded first, in this order
  std::string container;             // image file or registry address; empty: none
};

// Reads the value of the key `environments`. Returns INVALID_ARGUMENT with a message that starts with the
// place of the error, which `at` formats as "FILE:LINE:COLUMN".
absl::Status ReadEnvironments(const YAML::Node& node, const std::function<std::string(const YAML::Mark&)>& at,
                              std::vector<EnvironmentConfig>* environments);

}  // namespace scalelab::server
