// Tokens that a caller receives in exchange for another credential, and uses for a short time.
#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/identity/identity.h"

namespace scalelab::server {

inline constexpr absl::string_view kSessionTokenPrefix = "sls_";

// A session token has the prefix, the claims (user, source, scope, time of expiry) and their HMAC under the key of the
// server. It is not stored and cannot be revoked, so its lifetime is short. Thread-safe.
class SessionTokens {
 public:
  static constexpr absl::Duration kLifetime = absl::Minutes(30);

  // `key`: the secret of this server.
  explicit SessionTokens(std::string key) : key_(std::move(key)) {}

  // `source`: how the user was identified, for example "munge".
  std::string Issue(const std::string& user, const std::string& source, absl::Time now,
                    Scope scope = Scope::kAdmin) const;

  struct Claims {
    std::string user, source;
    Scope scope = Scope::kRead;
    absl::Time expires;
  };
  // Returns UNAUTHENTICATED if this server has not issued the token, or if it has expired.
  absl::StatusOr<Claims> Verify(absl::string_view token, absl::Time now) const;

 private:
  const std::string key_;
};

}  // namespace scalelab::server
