// Determines the identities of callers from their credentials.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "db/access/access_store.h"
#include "server/identity/audit_log.h"
#include "server/identity/identity.h"
#include "server/identity/personal_tokens.h"
#include "server/identity/session_tokens.h"
#include "server/identity/users.h"
#include "server/identity/web_logins.h"

namespace scalelab::server {

struct IdentityOptions {
  RoleLists roles;
  // Accounts of reverse proxies on the Unix socket. Their calls need a token, and the address of the caller
  // is the last one of x-forwarded-for.
  std::vector<std::string> proxies;
  UserDirectory directory = {};  // by default, that of this machine
};

// Checks all kinds of credentials, and knows the roles of users. Thread-safe.
class Authenticator {
 public:
  // `client_token`: the token of the file client.token, which belongs to the account of the service. `key`:
  // the secret of this server.
  Authenticator(IdentityOptions options, std::string client_token, const std::string& key,
                db::AccessStore& store);

  // Reads the tokens from the store, and starts the audit log. UNAVAILABLE if the account of this process
  // could not be looked up.
  absl::Status Start();

  // Returns the caller that presents `secret`. Errors: UNAUTHENTICATED, and those of Users::RoleOf.
  absl::StatusOr<Identity> Bearer(absl::string_view secret, const std::string& address, absl::Time now);
  // Returns the caller at the other end of the Unix socket.
  absl::StatusOr<Identity> SocketUser(const std::string& user);
  // Returns whether the user is a reverse proxy.
  bool IsProxy(const std::string& user) const;

  Users& users() { return users_; }
  PersonalTokens& tokens() { return tokens_; }
  const SessionTokens& sessions() const { return sessions_; }
  WebLogins& web_logins() { return web_logins_; }
  AuditLog& audit() { return audit_; }

 private:
  const IdentityOptions options_;
  const std::string client_token_;
  Users users_;
  PersonalTokens tokens_;
  const SessionTokens sessions_;
  WebLogins web_logins_;
  AuditLog audit_;
};

}  // namespace scalelab::server
