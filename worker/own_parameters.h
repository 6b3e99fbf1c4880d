// Passes the parameters of a run to its ranks: in spec.json, in the command, and in environment variables.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "scalelab/v1/run_spec.pb.h"

namespace scalelab::worker {

// Returns the contents of spec.json. Equal specifications give equal texts.
std::string SpecJson(const v1::RunSpec& spec);

// Returns the command with the values of the templates in its words. Returns FAILED_PRECONDITION if a template names no
// parameter of the run.
absl::StatusOr<std::vector<std::string>> ExpandedCommand(const v1::RunSpec& spec);

// Returns the variables that the study sets: `env`, and SCALELAB_PARAM_NAME for each of `params`, sorted.
std::vector<std::pair<std::string, std::string>> OwnVariables(const v1::RunSpec& spec);

}  // namespace scalelab::worker
