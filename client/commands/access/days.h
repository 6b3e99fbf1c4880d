// Parses durations in days.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace scalelab::client {

// Parses "30d", "12h", "90m" or combinations of hours, minutes and seconds. `option` is the name of the
// option in the error.
absl::StatusOr<absl::Duration> ParseDays(const std::string& option, const std::string& text);

}  // namespace scalelab::client
