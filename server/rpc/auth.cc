#include "server/rpc/auth.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "proto/status.h"
#include "proto/utf8.h"
#include "server/identity/secrets.h"
#include "server/rpc/web_metadata.h"

namespace scalelab::server {
namespace {

constexpr size_t kLongestDetail = 300;

std::string Metadata(const grpc::ServerContextBase& context, const char* key) {
  const auto it = context.client_metadata().find(key);
  return it == context.client_metadata().end() ? "" : std::string(it->second.data(), it->second.size());
}

std::string Bearer(const grpc::ServerContextBase& context) {
  const std::string value = Metadata(context, "authorization");
  absl::string_view token = value;
  return absl::ConsumePrefix(&token, "Bearer ") ? std::string(token) : "";
}

bool IsFromDashboard(const grpc::ServerContextBase& context, const Auth& auth) {
  const std::string secret = Metadata(context, kWebSecret);
  return !secret.empty() && SameSecret(secret, auth.SecretFor(kWebSecretName));
}

absl::Status NoToken() {
  return MakeError(
      absl::StatusCode::kUnauthenticated, "NO_TOKEN",
      "this address of the server requires a token; create one with `scalelab token create` on the "
      "machine of the server, and give its file with --token-file or SCALELAB_TOKEN_FILE");
}

bool IsRefusal(const absl::Status& status) {
  return absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status);
}

db::AuditRow RowOf(const std::string& action, const absl::Status& status) {
  db::AuditRow row;
  row.time = absl::ToUnixMicros(absl::Now());
  row.action = action;
  row.result = absl::StatusCodeToString(status.code());
  row.detail = std::string(CutUtf8(status.message(), kLongestDetail));
  row.refused = IsRefusal(status);
  return row;
}

}  // namespace

bool ChangesSomething(absl::string_view action) {
  static constexpr absl::string_view kReading[] = {"Get",     "List",    "Read",   "Watch",          "Plan",
                                                   "Explain", "Compare", "Advise", "CreateChallenge"};
  return std::none_of(std::begin(kReading), std::end(kReading),
                      [&](absl::string_view prefix) { return absl::StartsWith(action, prefix); });
}

absl::StatusOr<std::string> Auth::CheckWorker(const grpc::ServerContextBase& context) const {
  std::string allocation = Metadata(context, "x-scalelab-allocation");
  if (!allocation.empty() && SameSecret(Bearer(context), SecretFor(allocation))) return allocation;
  return MakeError(absl::StatusCode::kUnauthenticated, "BAD_ALLOCATION_SECRET",
                   "the allocation secret is not one of this server");
}

std::string Auth::SecretFor(const std::string& allocation_token) const {
  return Hmac(key_, allocation_token);
}

absl::StatusOr<Identity> Access::CheckClient(const grpc::ServerContextBase& context) const {
  const std::string token = Bearer(context);
  const std::string user = local_ ? connections_.UserOf(context.peer()) : "";
  if (!token.empty()) {
    absl::StatusOr<Identity> caller = identities_.Bearer(token, AddressOf(context), absl::Now());
    if (caller.ok() && !local_) connections_.MarkAuthenticated(context.peer());
    return caller;
  }
  if (user.empty() || identities_.IsProxy(user)) return NoToken();
  return identities_.SocketUser(user);
}

absl::StatusOr<std::string> Access::CheckWorker(const grpc::ServerContextBase& context) const {
  absl::StatusOr<std::string> allocation = auth_.CheckWorker(context);
  if (allocation.ok() && !local_) connections_.MarkAuthenticated(context.peer());
  return allocation;
}

std::string Access::PeerOf(const grpc::ServerContextBase& context) const {
  if (IsFromDashboard(context, auth_)) return "web " + Metadata(context, kWebLogin);
  // All callers behind a proxy share its account, and possibly its connections. Distinguish them
  // by their addresses.
  const bool proxied = local_ && identities_.IsProxy(connections_.UserOf(context.peer()));
  return proxied ? AddressOf(context) : connections_.PeerOf(context.peer());
}

std::string Access::AddressOf(const grpc::ServerContextBase& context) const {
  if (IsFromDashboard(context, auth_)) return Metadata(context, kWebAddress);
  if (!local_) return connections_.PeerOf(context.peer());
  if (!identities_.IsProxy(connections_.UserOf(context.peer()))) return "local";
  // Use the last address, because only this one was added by the proxy itself.
  const std::string forwarded = Metadata(context, "x-forwarded-for");
  const std::vector<std::string> addresses = absl::StrSplit(forwarded, ',');
  const std::string last(absl::StripAsciiWhitespace(addresses.back()));
  return last.empty() || last.size() > 64 ? "proxy" : last;
}

void Access::Audit(const ClientCall& call, const absl::Status& status) const {
  db::AuditRow row = RowOf(call.action(), status);
  if (call.hidden()) {
    row.refused = true;
    row.result = "PERMISSION_DENIED";
    row.detail = "the study is private; the caller got NOT_FOUND";
  }
  if (!row.refused && !(status.ok() && call.changes())) return;
  row.user = call.caller().user;
  row.source = call.caller().source;
  row.address = call.caller().address;
  row.target = call.target();
  if (status.ok()) row.detail = call.detail();
  identities_.audit().Add(std::move(row));
}

void Access::AuditUnknown(const grpc::ServerContextBase& context, const std::string& action,
                          const absl::Status& status) const {
  db::AuditRow row = RowOf(action, status);
  if (!row.refused) return;
  if (local_) row.user = connections_.UserOf(context.peer());
  row.source = local_ ? "unix socket" : "";
  row.address = AddressOf(context);
  identities_.audit().Add(std::move(row));
}

}  // namespace scalelab::server
