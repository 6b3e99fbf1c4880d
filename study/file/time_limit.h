// Time limits as people write them.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace scalelab::client {

// Seconds: a plain number ("1800"), units ("90s", "30m", "1h30m", "2d"), or one of Slurm's forms with a colon
// or a dash
// ("MM:SS", "HH:MM:SS", "D-HH", "D-HH:MM", "D-HH:MM:SS"). Nothing when it is none of these or longer than
// 10,000 days. A plain number means seconds here; Slurm would take it for minutes.
std::optional<int64_t> ParseTimeLimit(absl::string_view text);

}  // namespace scalelab::client
