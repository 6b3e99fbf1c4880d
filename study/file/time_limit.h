// Parsing of time limits.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace scalelab {

// Returns seconds. Accepts a plain number ("1800"), units ("90s", "30m", "1h30m", "2d") and Slurm's forms
// with a colon or a dash ("MM:SS", "HH:MM:SS", "D-HH", "D-HH:MM", "D-HH:MM:SS"). Returns nothing for other
// text and for more than 10,000 days. A plain number means seconds here; in Slurm it means minutes.
std::optional<int64_t> ParseTimeLimit(absl::string_view text);

}  // namespace scalelab
