// `scalelab token create`: creates a personal token and prints its secret.
#include "absl/strings/str_cat.h"
#include "client/commands/access/days.h"
#include "client/commands/access/token_table.h"
#include "client/commands/commands.h"
#include "client/output/text.h"

namespace scalelab::client {
namespace {

using scalelab::v1::AuthService;

struct TokenCreateOptions {
  std::string expires = "30d";
  std::string scope = "submit";
  std::string description;
};

absl::StatusOr<ExitCode> ExecuteTokenCreate(const TokenCreateOptions& options, Session& session) {
  const auto lifetime = ParseDays("--expires", options.expires);
  if (!lifetime.ok()) return lifetime.status();
  scalelab::v1::CreateTokenRequest request;
  request.mutable_lifetime()->set_seconds(absl::ToInt64Seconds(*lifetime));
  request.set_scope(options.scope == "read"    ? scalelab::v1::READ_SCOPE
                    : options.scope == "admin" ? scalelab::v1::ADMIN_SCOPE
                                               : scalelab::v1::SUBMIT_SCOPE);
  request.set_description(options.description);
  auto server = session.Server();
  if (!server.ok()) return server.status();
  // If the connection fails, the retry may create a second token. The user can revoke the token that
  // was not printed.
  const auto created = (*server)->Call((*server)->auth(), &AuthService::Stub::CreateToken, request);
  if (!created.ok()) return created.status();
  Section secret;
  secret.columns = {{"secret"}};
  secret.header = false;
  secret.rows = [&created](const RowSink& sink) { sink({created->secret()}); };
  if (const absl::Status status = session.Print({*created, {std::move(secret)}}); !status.ok()) return status;
  const auto& token = created->token();
  session.Say(
      absl::StrCat(token.name(), " of ", token.user(), " with scope ", ScopeText(token.scope()),
                   " expires on ", LocalTime(token.expire_time()),
                   ". The secret is not stored and is not shown again: write it "
                   "into a file with mode 0600 and give its path with --token-file or SCALELAB_TOKEN_FILE"));
  return ExitCode::kOk;
}

}  // namespace

void AddTokenCreate(CLI::App& token, Action& chosen) {
  auto options = std::make_shared<TokenCreateOptions>();
  CLI::App* command = token.add_subcommand("create", "Create a personal token and print its secret");
  command->add_option("--expires", options->expires, "Time until it expires, at most 400d")
      ->capture_default_str();
  command->add_option("--scope", options->scope, "What it may be used for: read, submit or admin")
      ->check(CLI::IsMember({"read", "submit", "admin"}))
      ->capture_default_str();
  command->add_option("--description", options->description, "Text that tells your tokens apart");
  command->callback([options, &chosen] {
    chosen = [options](Session& session) { return ExecuteTokenCreate(*options, session); };
  });
}

}  // namespace scalelab::client
