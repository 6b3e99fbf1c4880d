// The words in study files for the enumerators of the API.
#pragma once

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"

namespace scalelab {

// Returns the word of an enumerator: "strong" for STRONG, "exit_status" for EXIT_STATUS, and
// "per-run" for PER_RUN.
inline std::string EnumWord(absl::string_view name) {
  const std::string word = absl::AsciiStrToLower(name);
  return word == "per_run" ? "per-run" : word;
}

}  // namespace scalelab
