// Makes PDF and PNG from SVG.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace scalelab::client {

// Returns the picture in `format`, "pdf" or "png" (with two pixels for each unit of the picture). It is made by the program
// rsvg-convert of librsvg. FAILED_PRECONDITION if the program is not installed, UNKNOWN if it fails.
absl::StatusOr<std::string> ConvertSvg(const std::string& svg, const std::string& format);

}  // namespace scalelab::client
