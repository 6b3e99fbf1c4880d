// The words of study files for the enumerators of the API.
#pragma once

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"

namespace scalelab {

// Returns the word of an enumerator: "strong" of STRONG, "exit_status" of EXIT_STATUS, and "per-run" of PER_RUN.
inline std::string EnumWord(absl::string_view name) {
  const std::string word = absl::AsciiStrToLower(name);
  return word == "per_run" ? "per-run" : word;
}

}  // namespace scalelab
