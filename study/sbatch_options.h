// sbatch options that pass through the coordinator: a study's own, and those that a site sets for every job.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace scalelab {

// What is wrong with this option, one sentence; empty when it may pass through. `name` is a long option's
// name without dashes in front; an empty `value` means that the option takes none.
std::string SbatchOptionMistake(absl::string_view name, absl::string_view value);

}  // namespace scalelab
