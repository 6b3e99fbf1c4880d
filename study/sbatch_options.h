// sbatch options that the coordinator passes through: those of a study, and those that a site sets
// for every job.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace scalelab {

// Returns the reason why this option is refused; empty if it may be passed through. `name` is the name of a
// long option without leading dashes. An empty `value` means that the option has none.
std::string SbatchOptionMistake(absl::string_view name, absl::string_view value);

}  // namespace scalelab
