#include "client/commands/access/days.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace scalelab::client {

absl::StatusOr<absl::Duration> ParseDays(const std::string& option, const std::string& text) {
  absl::string_view number = text;
  double days = 0;
  absl::Duration span;
  if (absl::ConsumeSuffix(&number, "d") && absl::SimpleAtod(number, &days)) {
    span = days * absl::Hours(24);
  } else if (!absl::ParseDuration(text, &span)) {
    span = absl::ZeroDuration();
  }
  if (span > absl::ZeroDuration() && span < absl::InfiniteDuration()) return span;
  return absl::InvalidArgumentError(
      absl::StrCat(option, " '", text, "' is no time; write for example 30d, 12h or 90m"));
}

}  // namespace scalelab::client
