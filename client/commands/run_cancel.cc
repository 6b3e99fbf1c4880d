// `scalelab run cancel RUNS`: cancels single runs.
#include "client/commands/commands.h"
#include "client/commands/each.h"

namespace scalelab::client {
namespace {

struct RunCancelOptions {
  std::string runs;
};

absl::StatusOr<ExitCode> ExecuteRunCancel(const RunCancelOptions& options, Session& session) {
  return ChangeRuns<scalelab::v1::CancelRunRequest>(
      session, options.runs, &scalelab::v1::RunService::Stub::CancelRun, "nothing cancelled");
}

}  // namespace

void AddRunCancel(CLI::App& run, Action& chosen) {
  auto options = std::make_shared<RunCancelOptions>();
  CLI::App* command = run.add_subcommand("cancel", "Cancel single runs");
  command->add_option("RUNS", options->runs, "Number, 12-15,20, or full names")->required();
  command->callback(
      [options, &chosen] { chosen = [options](Session& s) { return ExecuteRunCancel(*options, s); }; });
}

}  // namespace scalelab::client
