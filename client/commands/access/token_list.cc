// `scalelab token list`: lists personal tokens.
#include "client/commands/access/token_table.h"
#include "client/commands/commands.h"

namespace scalelab::client {
namespace {

absl::StatusOr<ExitCode> ExecuteTokenList(Session& session) {
  auto server = session.Server();
  if (!server.ok()) return server.status();
  const auto list = (*server)->Call((*server)->auth(), &scalelab::v1::AuthService::Stub::ListTokens,
                                    scalelab::v1::ListTokensRequest());
  if (!list.ok()) return list.status();
  if (const absl::Status status = session.Print({*list, {TokenTable(list->tokens(), session.now())}});
      !status.ok())
    return status;
  return ExitCode::kOk;
}

}  // namespace

void AddTokenList(CLI::App& token, Action& chosen) {
  CLI::App* command = token.add_subcommand("list", "List your tokens; admins see those of all users");
  command->callback([&chosen] { chosen = ExecuteTokenList; });
}

}  // namespace scalelab::client
