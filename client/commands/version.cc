// `scalelab version`: prints the version of this program and, if the server responds, the version
// of the server.
#include "client/commands/commands.h"
#include "client/commands/sections.h"

namespace scalelab::client {
namespace {

absl::StatusOr<ExitCode> ExecuteVersion(Session& session) {
  session.io().out << "scalelab " << SCALELAB_VERSION << '\n';
  auto server = session.Server();
  const auto cluster =
      server.ok() ? (*server)->Call((*server)->cluster(), &scalelab::v1::ClusterService::Stub::GetCluster,
                                    scalelab::v1::GetClusterRequest())
                  : absl::StatusOr<scalelab::v1::GetClusterResponse>(server.status());
  if (cluster.ok()) session.io().out << "scalelabd " << cluster->version() << '\n';
  if (const absl::Status status = Flush(session.io().out); !status.ok()) return status;
  if (!cluster.ok()) session.Say(cluster.status().message());
  return ExitCode::kOk;
}

}  // namespace

void AddVersion(CLI::App& app, Action& chosen) {
  CLI::App* command = app.add_subcommand("version", "Print the version of this program and of the server");
  command->callback([&chosen] { chosen = ExecuteVersion; });
}

}  // namespace scalelab::client
