// The table of everything a study may set on a cell: one row a key, used for checking, expansion, "did you
// mean" and documentation. Keys are the names of RunSpec's fields.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace scalelab {

enum class KeyType { kString, kInt, kDouble, kBool, kStringList };

struct StudyKey {
  absl::string_view name;
  KeyType type;
  // Allowed values of a kString key; empty means any non-empty string.
  std::vector<absl::string_view> choices;
  // Range of a number, both ends included.
  double min = 0, max = 0;
  absl::string_view help;  // one line, with unit
};

// All keys that may stand in "fixed", "matrix", "zip" and "exclude".
const std::vector<StudyKey>& StudyKeys();
// Null when there is no such key.
const StudyKey* FindStudyKey(absl::string_view name);

// The candidate nearest to `word` by edit distance, or empty when none is near (more than a third of its
// letters differ).
std::string Nearest(absl::string_view word, const std::vector<absl::string_view>& candidates);

}  // namespace scalelab
