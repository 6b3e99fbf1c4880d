#include "catalog/nearest.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/ascii.h"

namespace scalelab {
namespace {

// Counts the edits between two words. Swapping two neighbours is one edit (optimal string alignment): "modle" is one
// edit from "model".
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

}  // namespace

std::string Nearest(absl::string_view word, const std::vector<absl::string_view>& candidates) {
  constexpr size_t kLongest = 64;  // no known name is longer; the work is quadratic in the length
  if (word.size() > kLongest) return "";
  std::string lower = absl::AsciiStrToLower(word);
  absl::string_view best;
  size_t best_distance = kLongest;
  for (absl::string_view candidate : candidates) {
    size_t distance = EditDistance(lower, absl::AsciiStrToLower(candidate));
    if (distance * 3 <= std::max(word.size(), candidate.size()) && distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return std::string(best);
}

}  // namespace scalelab
