// `scalelab whoami`: shows the identity of the caller.
#include "client/commands/access/token_table.h"
#include "client/commands/commands.h"
#include "client/output/text.h"

namespace scalelab::client {
namespace {

absl::StatusOr<ExitCode> ExecuteWhoami(Session& session) {
  auto server = session.Server();
  if (!server.ok()) return server.status();
  const auto response = (*server)->Call((*server)->auth(), &scalelab::v1::AuthService::Stub::GetIdentity,
                                        scalelab::v1::GetIdentityRequest());
  if (!response.ok()) return response.status();
  const scalelab::v1::Identity& me = response->identity();
  Section facts;
  facts.columns = {{"user"},
                   {"role"},
                   {"scope"},
                   {"source"},
                   {"expires", Column::In::kTables},
                   {"expire_time", Column::In::kCsv}};
  facts.rows = [&me](const RowSink& sink) {
    sink({me.user(), EnumText(scalelab::v1::Role_Name(me.role())), ScopeText(me.scope()), me.source(),
          LocalTime(me.expire_time()), UtcTime(me.expire_time())});
  };
  if (const absl::Status status = session.Print({*response, {std::move(facts)}}); !status.ok()) return status;
  return ExitCode::kOk;
}

}  // namespace

void AddWhoami(CLI::App& app, Action& chosen) {
  CLI::App* command =
      app.add_subcommand("whoami", "Show your name and role at the server, and how it identified you");
  command->callback([&chosen] { chosen = ExecuteWhoami; });
}

}  // namespace scalelab::client
