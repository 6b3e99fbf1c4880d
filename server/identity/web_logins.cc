#include "server/identity/web_logins.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/status.h"
#include "server/identity/secrets.h"

namespace scalelab::server {

void WebLogins::SetUrl(std::string url) {
  absl::MutexLock lock(&mutex_);
  url_ = std::move(url);
}

void WebLogins::RemoveOld(const std::string& user, absl::Time now) {
  size_t of_user = 0;
  auto oldest = by_hash_.end();
  for (auto it = by_hash_.begin(); it != by_hash_.end();) {
    if (it->second.expires <= now) {
      it = by_hash_.erase(it);
      continue;
    }
    if (it->second.caller.user == user) {
      ++of_user;
      if (oldest == by_hash_.end() || it->second.expires < oldest->second.expires) oldest = it;
    }
    ++it;
  }
  if (of_user >= kCodesPerUser) by_hash_.erase(oldest);
}

absl::StatusOr<WebLogins::Link> WebLogins::Create(Identity caller, Scope scope, absl::Time now) {
  const absl::StatusOr<std::string> code = RandomSecret();
  if (!code.ok()) return code.status();
  absl::MutexLock lock(&mutex_);
  if (url_.empty()) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, "NO_DASHBOARD",
        "this server has no dashboard; its operator can start scalelabd with --web 127.0.0.1:PORT");
  }
  RemoveOld(caller.user, now);
  caller.scope = scope;
  const absl::Time expires = now + kLifetime;
  by_hash_[Sha256(*code)] = {std::move(caller), expires};
  // Browsers do not send the part after '#' to any server, so the code does not appear in the log of a proxy.
  return Link{absl::StrCat(url_, "#login=", *code), expires};
}

absl::StatusOr<Identity> WebLogins::Redeem(absl::string_view code, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  const auto found = by_hash_.find(Sha256(code));
  if (found == by_hash_.end() || found->second.expires <= now) {
    return MakeError(
        absl::StatusCode::kUnauthenticated, "BAD_LOGIN_CODE",
        "this login link was used before, or is older than two minutes; run `scalelab web` again");
  }
  Identity caller = std::move(found->second.caller);
  by_hash_.erase(found);
  return caller;
}

}  // namespace scalelab::server
