#include "munge/login_text.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace scalelab {
namespace {

constexpr size_t kMostDigitsOfTime = 18;  // fits into int64_t
constexpr size_t kNonceDigits = 32;
constexpr size_t kSignatureDigits = 64;

bool IsHex(absl::string_view text, size_t digits) {
  return text.size() == digits && std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f');
         });
}

}  // namespace

bool IsLoginChallenge(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  return parts.size() == 4 && parts[0] == kLoginPurpose && !parts[1].empty() &&
         parts[1].size() <= kMostDigitsOfTime &&
         std::all_of(parts[1].begin(), parts[1].end(), absl::ascii_isdigit) &&
         IsHex(parts[2], kNonceDigits) && IsHex(parts[3], kSignatureDigits);
}

absl::StatusOr<std::string> LoginText(absl::string_view challenge, absl::string_view fingerprint) {
  if (!IsLoginChallenge(challenge)) {
    return absl::FailedPreconditionError(
        "the server sends a challenge that is not one of scalelabd, so this client does not sign it; ask the "
        "operator of the server, or log in with a token");
  }
  return absl::StrCat(challenge, ":", absl::AsciiStrToLower(absl::StrReplaceAll(fingerprint, {{":", ""}})));
}

}  // namespace scalelab
