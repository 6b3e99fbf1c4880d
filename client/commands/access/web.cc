// `scalelab web`: prints a link with which a browser can log in to the dashboard once.
#include "absl/strings/str_cat.h"
#include "client/commands/commands.h"
#include "client/output/text.h"

namespace scalelab::client {
namespace {

struct WebOptions {
  std::string scope;
};

absl::StatusOr<ExitCode> ExecuteWeb(const WebOptions& options, Session& session) {
  scalelab::v1::CreateWebLoginRequest request;
  request.set_scope(options.scope == "read"     ? scalelab::v1::READ_SCOPE
                    : options.scope == "submit" ? scalelab::v1::SUBMIT_SCOPE
                    : options.scope == "admin"  ? scalelab::v1::ADMIN_SCOPE
                                                : scalelab::v1::SCOPE_UNSPECIFIED);
  auto server = session.Server();
  if (!server.ok()) return server.status();
  const auto login =
      (*server)->Call((*server)->auth(), &scalelab::v1::AuthService::Stub::CreateWebLogin, request);
  if (!login.ok()) return login.status();
  Section link;
  link.columns = {{"url"}};
  link.header = false;
  link.rows = [&login](const RowSink& sink) { sink({login->url()}); };
  if (const absl::Status status = session.Print({*login, {std::move(link)}}); !status.ok()) return status;
  session.Say(
      "open this link in a browser within two minutes; it works once. If the server is on another machine, "
      "forward the "
      "port of the link to this one first: ssh -L PORT:127.0.0.1:PORT HOST");
  return ExitCode::kOk;
}

}  // namespace

void AddWeb(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<WebOptions>();
  CLI::App* command =
      app.add_subcommand("web", "Print a link that logs a browser in to the dashboard of the server");
  command
      ->add_option("--scope", options->scope,
                   "What the dashboard may do: read, submit or admin; submit if not given")
      ->check(CLI::IsMember({"read", "submit", "admin"}));
  command->callback(
      [options, &chosen] { chosen = [options](Session& session) { return ExecuteWeb(*options, session); }; });
}

}  // namespace scalelab::client
