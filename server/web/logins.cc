#include "server/web/logins.h"

#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "nlohmann/json.hpp"
#include "proto/utf8.h"
#include "server/identity/permissions.h"
#include "server/identity/secrets.h"

namespace scalelab::server {
namespace {

absl::Status NotLoggedIn() {
  return absl::UnauthenticatedError(
      "this browser is not logged in; `scalelab web` prints a link that logs it in");
}

// Calls `work` on a thread of the pool, and `done` with its result.
template <typename Work>
void AnswerOn(CallPool& pool, Logins::Done done, Work work) {
  pool.Run([done = std::move(done), work = std::move(work)](const absl::Status& status) {
    done(status.ok() ? work() : RespondError(status));
  });
}

}  // namespace

Logins::Logins(Authenticator& identities, std::string key, bool encrypted)
    : identities_(identities),
      key_(std::move(key)),
      cookie_("scalelab-" + Hmac(key_, "web cookie").substr(0, 8)),
      encrypted_(encrypted),
      pool_("logins of browsers", 1, 64) {}

std::string Logins::KeyFor(const std::string& token) const { return Hmac(key_, "web key " + token); }

std::string Logins::CookieOf(const HttpRequest& request) const {
  const std::string cookies = HeaderOf(request, "Cookie");
  for (const absl::string_view part : absl::StrSplit(cookies, ';')) {
    absl::string_view cookie = absl::StripAsciiWhitespace(part);
    if (absl::ConsumePrefix(&cookie, cookie_) && absl::ConsumePrefix(&cookie, "="))
      return std::string(cookie);
  }
  return "";
}

absl::StatusOr<WebCaller> Logins::CallerOf(const HttpRequest& request, const std::string& address) const {
  WebCaller caller;
  caller.token = CookieOf(request);
  if (caller.token.empty() || !SameSecret(HeaderOf(request, "X-Scalelab-Key"), KeyFor(caller.token)))
    return NotLoggedIn();
  caller.address = address;
  caller.login = Sha256(caller.token).substr(0, 16);
  return caller;
}

std::string Logins::SetCookie(const std::string& token, absl::Duration lifetime) const {
  return absl::StrCat(cookie_, "=", token,
                      "; Path=/; HttpOnly; SameSite=Strict; Max-Age=", absl::ToInt64Seconds(lifetime),
                      encrypted_ ? "; Secure" : "");
}

void Logins::LogIn(const HttpRequest& request, const std::string& address, Done done) {
  AnswerOn(pool_, std::move(done), [this, body = request.body(), address] { return Create(body, address); });
}

void Logins::LogOut(const WebCaller& caller, Done done) {
  AnswerOn(pool_, std::move(done), [this, caller] { return Revoke(caller); });
}

absl::StatusOr<Identity> Logins::Check(const std::string& body, const std::string& address) {
  const nlohmann::json json = nlohmann::json::parse(body, nullptr, /*allow_exceptions=*/false);
  const auto text = [&json](const char* field) {
    return json.is_object() && json.contains(field) && json[field].is_string()
               ? json[field].get<std::string>()
               : "";
  };
  const std::string code = text("code"), token = text("token");
  if (code.empty() == token.empty())
    return absl::InvalidArgumentError("the body of a login is {\"code\": CODE} or {\"token\": SECRET}");
  if (!code.empty()) return identities_.web_logins().Redeem(code, absl::Now());
  absl::StatusOr<Identity> caller = identities_.Bearer(token, address, absl::Now());
  // The default is the same as for `scalelab web`: an admin must request a wider scope explicitly.
  if (caller.ok()) caller->scope = std::min(caller->scope, Scope::kSubmit);
  return caller;
}

HttpResponse Logins::Create(const std::string& body, const std::string& address) {
  absl::StatusOr<Identity> caller = Check(body, address);
  if (!caller.ok()) {
    Identity unknown;
    unknown.address = address;
    Audit("WebLogin", unknown, caller.status());
    return RespondError(caller.status());
  }
  caller->address = address;
  const absl::Time now = absl::Now();
  const absl::Duration lifetime = TokenLifetime(*caller, kLifetime, now);
  const auto created = identities_.tokens().Create(caller->user, caller->scope, lifetime,
                                                   absl::StrCat("dashboard in a browser at ", address), now);
  Audit("WebLogin", *caller, created.status());
  if (!created.ok()) return RespondError(created.status());
  HttpResponse response = RespondJson(nlohmann::json{{"key", KeyFor(created->secret)}}.dump());
  response.set(boost::beast::http::field::set_cookie, SetCookie(created->secret, lifetime));
  return response;
}

HttpResponse Logins::Revoke(const WebCaller& caller) {
  const auto token = identities_.tokens().Verify(caller.token, absl::Now());
  if (token.ok()) {
    const auto revoked = identities_.tokens().Revoke(token->id, absl::Now());
    if (!revoked.ok()) return RespondError(revoked.status());
  }
  HttpResponse response = RespondJson("{}");
  response.set(boost::beast::http::field::set_cookie, SetCookie("", absl::ZeroDuration()));
  return response;
}

void Logins::Audit(const std::string& action, const Identity& caller, const absl::Status& status) {
  db::AuditRow row;
  row.time = absl::ToUnixMicros(absl::Now());
  row.user = caller.user;
  row.source = caller.source.empty() ? "dashboard" : caller.source;
  row.address = caller.address;
  row.action = action;
  row.result = absl::StatusCodeToString(status.code());
  row.detail = std::string(CutUtf8(status.message(), 300));
  row.refused = absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status);
  if (status.ok() || row.refused) identities_.audit().Add(std::move(row));
}

}  // namespace scalelab::server
