// `scalelab run retry RUNS`: queues single runs again.
#include "client/commands/commands.h"
#include "client/commands/each.h"

namespace scalelab::client {
namespace {

struct RunRetryOptions {
  std::string runs;
};

absl::StatusOr<ExitCode> ExecuteRunRetry(const RunRetryOptions& options, Session& session) {
  return ChangeRuns<scalelab::v1::RetryRunRequest>(
      session, options.runs, &scalelab::v1::RunService::Stub::RetryRun, "nothing to retry");
}

}  // namespace

void AddRunRetry(CLI::App& run, Action& chosen) {
  auto options = std::make_shared<RunRetryOptions>();
  CLI::App* command = run.add_subcommand("retry", "Queue failed or cancelled runs again, with new retries");
  command->add_option("RUNS", options->runs, "Number, 12-15,20, or full names")->required();
  command->callback(
      [options, &chosen] { chosen = [options](Session& s) { return ExecuteRunRetry(*options, s); }; });
}

}  // namespace scalelab::client
