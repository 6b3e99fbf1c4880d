// Finds the name that a misspelt word probably means.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace scalelab {

// Returns the candidate nearest to `word` by edit distance, or "" if more than a third of the letters differ.
std::string Nearest(absl::string_view word, const std::vector<absl::string_view>& candidates);

}  // namespace scalelab
