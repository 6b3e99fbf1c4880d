// Study files that are typed into the dashboard.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace scalelab::server {

// Returns {"spec": SPEC} for {"text": YAML}. A relative data_dir is refused, because there is no directory that it could be
// relative to. INVALID_ARGUMENT with the lines of all problems.
absl::StatusOr<std::string> ParseStudyText(const std::string& json);

}  // namespace scalelab::server
