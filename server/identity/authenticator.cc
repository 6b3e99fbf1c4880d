#include "server/identity/authenticator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/status.h"
#include "server/identity/secrets.h"

namespace scalelab::server {

Authenticator::Authenticator(IdentityOptions options, std::string client_token, const std::string& key,
                             db::AccessStore& store)
    : options_(std::move(options)),
      client_token_(std::move(client_token)),
      users_(options_.roles, options_.directory),
      tokens_(store),
      sessions_(key),
      audit_(store, [this] { return tokens_.StoreUses(); }) {}

absl::Status Authenticator::Start() {
  if (!users_.status().ok()) return users_.status();
  if (absl::Status s = tokens_.Load(); !s.ok()) return s;
  audit_.Start();
  return absl::OkStatus();
}

absl::StatusOr<Identity> Authenticator::Bearer(absl::string_view secret, const std::string& address,
                                               absl::Time now) {
  Identity caller;
  caller.address = address;
  if (absl::StartsWith(secret, kSessionTokenPrefix)) {
    const absl::StatusOr<SessionTokens::Claims> claims = sessions_.Verify(secret, now);
    if (!claims.ok()) return claims.status();
    caller.user = claims->user;
    caller.scope = claims->scope;
    caller.source = claims->source;
    caller.expires = absl::ToUnixMicros(claims->expires);
  } else if (SameSecret(secret, client_token_)) {
    caller.user = users_.service();
    caller.scope = Scope::kAdmin;
    caller.source = "client.token";
  } else {
    const absl::StatusOr<db::TokenRow> token = tokens_.Verify(secret, now);
    if (!token.ok()) return token.status();
    caller.user = token->user;
    caller.scope = static_cast<Scope>(token->scope);
    caller.source = absl::StrCat("token ", token->id);
    caller.expires = token->expires;
  }
  const absl::StatusOr<Role> role = users_.RoleOf(caller.user);
  if (!role.ok()) return role.status();
  caller.role = *role;
  return caller;
}

absl::StatusOr<Identity> Authenticator::SocketUser(const std::string& user) {
  const absl::StatusOr<Role> role = users_.RoleOf(user);
  if (!role.ok()) return role.status();
  Identity caller;
  caller.user = user;
  caller.role = *role;
  caller.scope = Scope::kAdmin;
  caller.source = "unix socket";
  return caller;
}

bool Authenticator::IsProxy(const std::string& user) const {
  return std::find(options_.proxies.begin(), options_.proxies.end(), user) != options_.proxies.end();
}

}  // namespace scalelab::server
