// Logins of browsers. A login is a personal token in a cookie, so `scalelab token list` shows it and `scalelab token
// revoke` ends it. It survives a restart of the server.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "server/identity/authenticator.h"
#include "server/rpc/call_pool.h"
#include "server/web/bridge.h"
#include "server/web/http.h"

namespace scalelab::server {

// A request of the dashboard's script has the cookie and, in the header X-Scalelab-Key, a signature of it that the script
// got at the login. Requests of other sites have no such header. A server of another account on the same machine, to which
// browsers send the cookie too because cookies are shared by all ports, cannot make the signature.
//
// Thread-safe.
class Logins {
 public:
  static constexpr absl::Duration kLifetime = absl::Hours(12);
  using Done = std::function<void(HttpResponse)>;

  // `key`: the secret of this server. `encrypted`: browsers use HTTPS.
  Logins(Authenticator& identities, std::string key, bool encrypted);

  // Returns the caller of the request. Returns UNAUTHENTICATED if it has no cookie or no valid key. The
  // services check the token.
  absl::StatusOr<WebCaller> CallerOf(const HttpRequest& request, const std::string& address) const;
  // Answers {"code": CODE} or {"token": SECRET}: creates a login for the user of the code or of the token, and calls `done`
  // with {"key": KEY} and a cookie. `done` may be called on another thread.
  void LogIn(const HttpRequest& request, const std::string& address, Done done);
  // Revokes the token of the login, and removes the cookie.
  void LogOut(const WebCaller& caller, Done done);

 private:
  absl::StatusOr<Identity> Check(const std::string& body, const std::string& address);
  HttpResponse Create(const std::string& body, const std::string& address);
  HttpResponse Revoke(const WebCaller& caller);
  std::string CookieOf(const HttpRequest& request) const;
  std::string KeyFor(const std::string& token) const;
  std::string SetCookie(const std::string& token, absl::Duration lifetime) const;
  void Audit(const std::string& action, const Identity& caller, const absl::Status& status);

  Authenticator& identities_;
  const std::string key_;
  // Name of the cookie. It differs between servers, because a browser may have cookies of several servers
  // on one host.
  const std::string cookie_;
  const bool encrypted_;
  CallPool pool_;  // writes to the database
};

}  // namespace scalelab::server
