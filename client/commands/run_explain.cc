// `scalelab run explain RUN`: shows why a run is not running.
#include "client/commands/commands.h"
#include "client/commands/sections.h"
#include "client/output/text.h"
#include "client/session/selectors.h"

namespace scalelab::client {
namespace {

using scalelab::v1::ExplainRunRequest;
using scalelab::v1::RunService;

struct RunExplainOptions {
  std::string run;
};

absl::StatusOr<ExitCode> ExecuteRunExplain(const RunExplainOptions& options, Session& session) {
  const auto name = RunName(options.run);
  if (!name.ok()) return name.status();
  auto server = session.Server();
  if (!server.ok()) return server.status();
  ExplainRunRequest request;
  request.set_name(*name);
  const auto response = (*server)->Call((*server)->runs(), &RunService::Stub::ExplainRun, request);
  if (!response.ok()) return response.status();
  Section facts = Facts({{"run", response->run().name()},
                         {"cell", KeyText(response->run().key())},
                         {"state", StateCell(response->run().state())}});
  const Answer answer{*response, {facts, ReasonTable(response->reasons(), session.now())}, 1};
  if (const absl::Status status = session.Print(answer); !status.ok()) return status;
  return ExitCode::kOk;
}

}  // namespace

void AddRunExplain(CLI::App& run, Action& chosen) {
  auto options = std::make_shared<RunExplainOptions>();
  CLI::App* command =
      run.add_subcommand("explain", "Show why a run is not running; the first reason must be resolved first");
  command->add_option("RUN", options->run, "Number, runs/NUMBER, or studies/NUMBER/runs/NUMBER")->required();
  command->callback([options, &chosen] {
    chosen = [options](Session& session) { return ExecuteRunExplain(*options, session); };
  });
}

}  // namespace scalelab::client
