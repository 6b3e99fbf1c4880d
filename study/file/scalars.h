// Values of plain YAML scalars. Internal to study files.
#pragma once

#include "absl/strings/string_view.h"

namespace scalelab {

// Reads true or false. Returns false for other text.
bool ParseBool(absl::string_view text, bool* value);

// Reads a number of YAML 1.2: decimal, .inf or .nan. Returns false for other text.
bool ParseNumber(absl::string_view text, double* value);

}  // namespace scalelab
