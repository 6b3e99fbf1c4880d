// `scalelab run cancel RUNS`: cancels single runs.
#include "client/commands/commands.h"
#include "client/commands/each.h"
#include "client/commands/sections.h"
#include "client/session/selectors.h"

namespace scalelab::client {
namespace {

using scalelab::v1::CancelRunRequest;
using scalelab::v1::ListRunsResponse;
using scalelab::v1::RunService;

struct Options {
  std::string runs;
};

absl::StatusOr<ExitCode> RunCommand(const Options& options, Session& session) {
  const auto names = RunNames(options.runs);
  if (!names.ok()) return names.status();
  auto server = session.Server();
  if (!server.ok()) return server.status();
  ListRunsResponse cancelled;
  const auto outcome = ForEach(session, *names, [&](const std::string& name) {
    CancelRunRequest request;
    request.set_name(name);
    auto response = (*server)->Call((*server)->runs(), &RunService::Stub::CancelRun, request);
    if (!response.ok()) return response.status();
    cancelled.mutable_runs()->Add(std::move(*response->mutable_run()));
    return absl::OkStatus();
  });
  Answer answer{cancelled, {RunTable(cancelled.runs())}};
  answer.sections[0].empty = "nothing cancelled";
  if (const absl::Status status = session.Print(answer); !status.ok()) return status;
  return outcome;
}

}  // namespace

void AddRunCancel(CLI::App& run, Action& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command = run.add_subcommand("cancel", "Cancel single runs");
  command->add_option("RUNS", options->runs, "Number, 12-15,20, or full names")->required();
  command->callback(
      [options, &chosen] { chosen = [options](Session& s) { return RunCommand(*options, s); }; });
}

}  // namespace scalelab::client
