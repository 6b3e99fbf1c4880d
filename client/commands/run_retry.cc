// `scalelab run retry RUNS`: queues single runs again.
#include "client/commands/commands.h"
#include "client/commands/each.h"
#include "client/commands/sections.h"
#include "client/session/selectors.h"

namespace scalelab::client {
namespace {

using scalelab::v1::ListRunsResponse;
using scalelab::v1::RetryRunRequest;
using scalelab::v1::RunService;

struct Options {
  std::string runs;
};

absl::StatusOr<ExitCode> RunCommand(const Options& options, Session& session) {
  const auto names = RunNames(options.runs);
  if (!names.ok()) return names.status();
  auto server = session.Server();
  if (!server.ok()) return server.status();
  ListRunsResponse retried;
  const auto outcome = ForEach(session, *names, [&](const std::string& name) {
    RetryRunRequest request;
    request.set_name(name);
    auto response = (*server)->Call((*server)->runs(), &RunService::Stub::RetryRun, request);
    if (!response.ok()) return response.status();
    retried.mutable_runs()->Add(std::move(*response->mutable_run()));
    return absl::OkStatus();
  });
  Answer answer{retried, {RunTable(retried.runs())}};
  answer.sections[0].empty = "nothing to retry";
  if (const absl::Status status = session.Print(answer); !status.ok()) return status;
  return outcome;
}

}  // namespace

void AddRunRetry(CLI::App& run, Action& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command = run.add_subcommand("retry", "Queue failed or cancelled runs again, with new retries");
  command->add_option("RUNS", options->runs, "Number, 12-15,20, or full names")->required();
  command->callback(
      [options, &chosen] { chosen = [options](Session& s) { return RunCommand(*options, s); }; });
}

}  // namespace scalelab::client
