// The keys of "fixed", "matrix", "zip", "exclude" and "baseline".
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "catalog/run_parameters.h"

namespace scalelab {

// A key of "fixed", "matrix" and "zip": a run parameter or, for a parameter that is a map, a name in it that
// the user chooses.
struct GridKey {
  std::string name;                         // "ranks", "params.dropout"
  const RunParameter* parameter = nullptr;  // null if there is no such key
  std::string member;                       // "dropout"; empty for a run parameter
};
// Returns the key of this name. The user's part of a name need not be valid.
GridKey FindGridKey(absl::string_view name);
// Returns what is wrong with the name of a key; nothing if a study may use it.
std::optional<std::string> CheckKey(const GridKey& key);

}  // namespace scalelab
