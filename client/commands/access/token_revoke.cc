// `scalelab token revoke TOKEN`: ends a personal token at once.
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/commands/access/token_table.h"
#include "client/commands/commands.h"

namespace scalelab::client {
namespace {

struct TokenRevokeOptions {
  std::vector<std::string> tokens;
};

absl::StatusOr<ExitCode> ExecuteTokenRevoke(const TokenRevokeOptions& options, Session& session) {
  auto server = session.Server();
  if (!server.ok()) return server.status();
  scalelab::v1::ListTokensResponse revoked;
  for (const std::string& token : options.tokens) {
    scalelab::v1::RevokeTokenRequest request;
    request.set_name(absl::StartsWith(token, "tokens/") ? token : absl::StrCat("tokens/", token));
    auto response =
        (*server)->Call((*server)->auth(), &scalelab::v1::AuthService::Stub::RevokeToken, request);
    if (!response.ok()) return response.status();
    revoked.mutable_tokens()->Add(std::move(*response->mutable_token()));
  }
  if (const absl::Status status = session.Print({revoked, {TokenTable(revoked.tokens(), session.now())}});
      !status.ok())
    return status;
  return ExitCode::kOk;
}

}  // namespace

void AddTokenRevoke(CLI::App& token, Action& chosen) {
  auto options = std::make_shared<TokenRevokeOptions>();
  CLI::App* command = token.add_subcommand("revoke", "End personal tokens at once");
  command->add_option("TOKENS", options->tokens, "Numbers, or names such as tokens/3")->required();
  command->callback([options, &chosen] {
    chosen = [options](Session& session) { return ExecuteTokenRevoke(*options, session); };
  });
}

}  // namespace scalelab::client
