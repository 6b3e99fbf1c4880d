#include "study/file/scalars.h"

#include <limits>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"

namespace scalelab {

bool ParseBool(absl::string_view text, bool* value) {
  *value = text == "true" || text == "True" || text == "TRUE";
  return *value || text == "false" || text == "False" || text == "FALSE";
}

bool ParseNumber(absl::string_view text, double* value) {
  std::string lower = absl::AsciiStrToLower(text);
  if (lower == ".nan") {
    *value = std::numeric_limits<double>::quiet_NaN();
    return true;
  }
  absl::string_view unsigned_part = lower;
  if (!lower.empty() && (lower[0] == '-' || lower[0] == '+')) unsigned_part.remove_prefix(1);
  if (unsigned_part == ".inf") {
    *value = std::numeric_limits<double>::infinity() * (lower[0] == '-' ? -1 : 1);
    return true;
  }
  // SimpleAtod also accepts "inf", "nan" and hexadecimal numbers, which are text in YAML 1.2.
  return unsigned_part.find_first_not_of("0123456789.e+-") == absl::string_view::npos &&
         absl::SimpleAtod(text, value);
}

}  // namespace scalelab
