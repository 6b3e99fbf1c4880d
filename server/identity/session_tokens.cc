#include "server/identity/session_tokens.h"

#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "proto/status.h"
#include "server/identity/secrets.h"

namespace scalelab::server {
namespace {

// The prefix is necessary because the same key also signs the secrets of allocations, whose text is a UUID.
// With the prefix, no signature of one kind is valid for the other.
std::string Sign(const std::string& key, absl::string_view claims) {
  return Hmac(key, absl::StrCat("scalelab session token\n", claims));
}

absl::Status Refused(absl::string_view reason, absl::string_view why) {
  return MakeError(absl::StatusCode::kUnauthenticated, reason, why);
}

}  // namespace

std::string SessionTokens::Issue(const std::string& user, const std::string& source, absl::Time now,
                                 Scope scope) const {
  const std::string claims = absl::StrCat(user, "\n", source, "\n", static_cast<int>(scope), "\n",
                                          absl::ToUnixMicros(now + kLifetime));
  return absl::StrCat(kSessionTokenPrefix, absl::WebSafeBase64Escape(claims), ".", Sign(key_, claims));
}

absl::StatusOr<SessionTokens::Claims> SessionTokens::Verify(absl::string_view token, absl::Time now) const {
  const absl::Status forged =
      Refused("BAD_SESSION", "the session token is not one of this server; log in again");
  if (!absl::ConsumePrefix(&token, kSessionTokenPrefix)) return forged;
  const std::vector<absl::string_view> parts = absl::StrSplit(token, '.');
  std::string text;
  if (parts.size() != 2 || !absl::WebSafeBase64Unescape(parts[0], &text)) return forged;
  if (!SameSecret(parts[1], Sign(key_, text))) return forged;
  const std::vector<std::string> fields = absl::StrSplit(text, '\n');
  int scope = 0;
  int64_t expires = 0;
  if (fields.size() != 4 || !absl::SimpleAtoi(fields[2], &scope) || !absl::SimpleAtoi(fields[3], &expires))
    return forged;
  if (absl::ToUnixMicros(now) >= expires)
    return Refused("SESSION_EXPIRED", "the session token has expired; log in again");
  return Claims{fields[0], fields[1], static_cast<Scope>(scope), absl::FromUnixMicros(expires)};
}

}  // namespace scalelab::server
