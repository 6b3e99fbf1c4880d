#include "server/services/auth_service.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/status.h"
#include "server/core/convert.h"
#include "server/identity/permissions.h"

namespace scalelab::server {
namespace {

static_assert(static_cast<int>(Role::kViewer) + 1 == v1::VIEWER &&
              static_cast<int>(Role::kAdmin) + 1 == v1::ADMIN);
static_assert(static_cast<int>(Scope::kRead) + 1 == v1::READ_SCOPE &&
              static_cast<int>(Scope::kAdmin) + 1 == v1::ADMIN_SCOPE);

std::string TokenName(int64_t id) { return absl::StrCat("tokens/", id); }

v1::Token ToToken(const db::TokenRow& row) {
  v1::Token token;
  token.set_name(TokenName(row.id));
  token.set_user(row.user);
  token.set_scope(static_cast<v1::Scope>(row.scope + 1));
  token.set_description(row.description);
  SetTime(row.created, token.mutable_create_time());
  if (row.expires != 0) SetTime(row.expires, token.mutable_expire_time());
  if (row.last_used != 0) SetTime(row.last_used, token.mutable_last_use_time());
  if (row.revoked != 0) SetTime(row.revoked, token.mutable_revoke_time());
  return token;
}

// Checks all fields of the request, and returns the requested lifetime.
absl::StatusOr<absl::Duration> LifetimeOf(const v1::CreateTokenRequest& request) {
  std::vector<FieldViolation> violations;
  const size_t longest = PersonalTokens::kLongestDescription;
  if (request.description().size() > longest) {
    violations.push_back({"description", absl::StrCat("description has ", request.description().size(),
                                                      " characters; at most ", longest, " are allowed")});
  }
  for (const char c : request.description()) {
    if (!absl::ascii_iscntrl(static_cast<unsigned char>(c))) continue;
    violations.push_back({"description", "description has a control character"});
    break;
  }
  if (!v1::Scope_IsValid(request.scope())) violations.push_back({"scope", "scope has no known value"});
  absl::Duration lifetime = PersonalTokens::kDefaultLifetime;
  if (request.has_lifetime())
    lifetime = absl::Seconds(request.lifetime().seconds()) + absl::Nanoseconds(request.lifetime().nanos());
  if (lifetime < absl::Seconds(1) || lifetime > PersonalTokens::kLongestLifetime) {
    violations.push_back({"lifetime", absl::StrCat("lifetime is ", absl::FormatDuration(lifetime),
                                                   "; it must be from 1 second to 400 days")});
  }
  if (!violations.empty()) return InvalidFields(std::move(violations));
  return lifetime;
}

absl::StatusOr<int64_t> TokenIdOf(absl::string_view name) {
  absl::string_view number = name;
  absl::ConsumePrefix(&number, "tokens/");
  int64_t id = 0;
  if (absl::SimpleAtoi(number, &id)) return id;
  return InvalidFields({{"name", absl::StrCat("'", name, "' is not of the form tokens/NUMBER")}});
}

}  // namespace

v1::Identity ToIdentity(const Identity& caller) {
  v1::Identity identity;
  identity.set_user(caller.user);
  identity.set_role(static_cast<v1::Role>(static_cast<int>(caller.role) + 1));
  identity.set_scope(static_cast<v1::Scope>(static_cast<int>(caller.scope) + 1));
  identity.set_source(caller.source);
  if (caller.expires != 0) SetTime(caller.expires, identity.mutable_expire_time());
  return identity;
}

grpc::ServerUnaryReactor* AuthService::GetIdentity(grpc::CallbackServerContext* context,
                                                   const v1::GetIdentityRequest*,
                                                   v1::GetIdentityResponse* response) {
  return BeginCall(handler_, context, response, [](const auto& call) {
    *call->response.mutable_identity() = ToIdentity(call->caller());
    call->Finish(absl::OkStatus());
  });
}

grpc::ServerUnaryReactor* AuthService::CreateToken(grpc::CallbackServerContext* context,
                                                   const v1::CreateTokenRequest* request,
                                                   v1::CreateTokenResponse* response) {
  return AnswerOn(handler_.pools.reads, handler_, context, response,
                  [this, request = *request](auto& call) -> absl::Status {
                    const absl::StatusOr<absl::Duration> lifetime = LifetimeOf(request);
                    if (!lifetime.ok()) return lifetime.status();
                    const Scope scope = request.scope() == v1::SCOPE_UNSPECIFIED
                                            ? Scope::kSubmit
                                            : static_cast<Scope>(static_cast<int>(request.scope()) - 1);
                    if (auto s = MayCreateToken(call.caller(), scope); !s.ok()) return s;
                    const absl::Time now = absl::Now();
                    auto created = handler_.access.identities().tokens().Create(
                        call.caller().user, scope, TokenLifetime(call.caller(), *lifetime, now),
                        request.description(), now);
                    if (!created.ok()) return created.status();
                    call.client().SetTarget(TokenName(created->row.id));
                    *call.response.mutable_token() = ToToken(created->row);
                    call.response.set_secret(std::move(created->secret));
                    return absl::OkStatus();
                  });
}

grpc::ServerUnaryReactor* AuthService::ListTokens(grpc::CallbackServerContext* context,
                                                  const v1::ListTokensRequest*,
                                                  v1::ListTokensResponse* response) {
  return AnswerOn(handler_.pools.reads, handler_, context, response, [this](auto& call) {
    const std::string whose = call.caller().IsAdmin() ? "" : call.caller().user;
    for (const db::TokenRow& row : handler_.access.identities().tokens().List(whose, absl::Now()))
      *call.response.add_tokens() = ToToken(row);
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AuthService::RevokeToken(grpc::CallbackServerContext* context,
                                                   const v1::RevokeTokenRequest* request,
                                                   v1::RevokeTokenResponse* response) {
  return AnswerOn(handler_.pools.reads, handler_, context, response,
                  [this, name = request->name()](auto& call) -> absl::Status {
                    const absl::StatusOr<int64_t> id = TokenIdOf(name);
                    if (!id.ok()) return id.status();
                    PersonalTokens& tokens = handler_.access.identities().tokens();
                    call.client().SetTarget(TokenName(*id));
                    const absl::StatusOr<db::TokenRow> token = tokens.Get(*id);
                    if (!token.ok()) return token.status();
                    if (auto s = MayRevokeToken(call.caller(), token->user, static_cast<Scope>(token->scope));
                        !s.ok())
                      return s;
                    const absl::StatusOr<db::TokenRow> revoked = tokens.Revoke(*id, absl::Now());
                    if (revoked.ok()) *call.response.mutable_token() = ToToken(*revoked);
                    return revoked.status();
                  });
}

grpc::ServerUnaryReactor* AuthService::CreateWebLogin(grpc::CallbackServerContext* context,
                                                      const v1::CreateWebLoginRequest* request,
                                                      v1::CreateWebLoginResponse* response) {
  return BeginCall(handler_, context, response, [this, wanted = request->scope()](const auto& call) {
    const Identity& caller = call->caller();
    if (!v1::Scope_IsValid(wanted))
      return call->Finish(InvalidFields({{"scope", "scope has no known value"}}));
    const Scope scope = wanted == v1::SCOPE_UNSPECIFIED ? std::min(caller.scope, Scope::kSubmit)
                                                        : static_cast<Scope>(static_cast<int>(wanted) - 1);
    // The login creates a personal token, so the caller needs permission to create one.
    if (auto s = MayCreateToken(caller, scope); !s.ok()) return call->Finish(s);
    auto link = handler_.access.identities().web_logins().Create(caller, scope, absl::Now());
    if (!link.ok()) return call->Finish(link.status());
    call->response.set_url(std::move(link->url));
    SetTime(absl::ToUnixMicros(link->expires), call->response.mutable_expire_time());
    call->Finish(absl::OkStatus());
  });
}

}  // namespace scalelab::server
