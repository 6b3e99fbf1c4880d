#include "study/file/time_limit.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace scalelab {
namespace {

constexpr int64_t kDay = 86400;
constexpr int64_t kLongest = 10'000 * kDay;

// Accepts digits only; SimpleAtoi alone would accept "+5" and " 5".
std::optional<int64_t> Digits(absl::string_view text) {
  int64_t value = 0;
  bool digits = !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
  if (!digits || !absl::SimpleAtoi(text, &value) || value > kLongest) return std::nullopt;
  return value;
}

std::optional<int64_t> SlurmForm(absl::string_view text) {
  int64_t total = 0;
  bool has_days = false;
  if (size_t dash = text.find('-'); dash != absl::string_view::npos) {
    std::optional<int64_t> days = Digits(text.substr(0, dash));
    if (!days || *days > kLongest / kDay) return std::nullopt;
    total = *days * kDay;
    text.remove_prefix(dash + 1);
    has_days = true;
  }
  std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  if (parts.size() > 3 || (!has_days && parts.size() < 2)) return std::nullopt;
  // With days, the first part is hours. Without days, the last part is seconds.
  int64_t unit = has_days ? 3600 : parts.size() == 3 ? 3600 : 60;
  for (size_t i = 0; i < parts.size(); ++i, unit /= 60) {
    std::optional<int64_t> value = Digits(parts[i]);
    if (!value || (i > 0 && *value > 59)) return std::nullopt;
    total += *value * unit;
    if (total > kLongest) return std::nullopt;
  }
  return total;
}

std::optional<int64_t> Units(absl::string_view text) {
  int64_t total = 0;
  int64_t last = kLongest;  // units must be in descending order, each at most once
  while (!text.empty()) {
    size_t digits = 0;
    while (digits < text.size() && absl::ascii_isdigit(text[digits])) ++digits;
    std::optional<int64_t> value = Digits(text.substr(0, digits));
    if (!value || digits == text.size()) return std::nullopt;
    int64_t unit = 0;
    switch (text[digits]) {
      case 'd':
        unit = kDay;
        break;
      case 'h':
        unit = 3600;
        break;
      case 'm':
        unit = 60;
        break;
      case 's':
        unit = 1;
        break;
      default:
        return std::nullopt;
    }
    if (unit >= last || *value > kLongest / unit) return std::nullopt;
    last = unit;
    total += *value * unit;
    text.remove_prefix(digits + 1);
  }
  return total <= kLongest ? std::optional(total) : std::nullopt;
}

}  // namespace

std::optional<int64_t> ParseTimeLimit(absl::string_view text) {
  if (text.empty()) return std::nullopt;
  if (std::optional<int64_t> seconds = Digits(text)) return seconds;
  if (text.find_first_of(":-") != absl::string_view::npos) return SlurmForm(text);
  return Units(text);
}

}  // namespace scalelab
