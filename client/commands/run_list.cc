// `scalelab run list STUDIES`: lists runs in the order of execution.
#include <string>
#include <unordered_set>
#include <utility>

#include "absl/strings/ascii.h"
#include "client/commands/commands.h"
#include "client/commands/sections.h"
#include "client/selection/run_selection.h"
#include "client/session/selectors.h"

namespace scalelab::client {
namespace {

using scalelab::v1::ListRunsRequest;
using scalelab::v1::ListRunsResponse;
using scalelab::v1::Run;
using scalelab::v1::RunService;

struct RunListOptions {
  std::string studies;
  std::string state;
  RunSelection selection;
};

absl::StatusOr<ExitCode> ExecuteRunList(const RunListOptions& options, Session& session) {
  Run::State state = Run::STATE_UNSPECIFIED;
  Run::State_Parse(absl::AsciiStrToUpper(options.state), &state);  // the parser has checked the name
  const auto names = StudyNames(options.studies);
  if (!names.ok()) return names.status();
  auto server = session.Server();
  if (!server.ok()) return server.status();
  ListRunsResponse list;
  std::unordered_set<std::string> listed;  // names. Two selectors may mean the same study
  for (const std::string& name : *names) {
    ListRunsRequest request;
    request.set_parent(name);
    request.set_page_size(10'000);
    request.set_state(state);
    do {
      auto page = (*server)->Call((*server)->runs(), &RunService::Stub::ListRuns, request);
      if (!page.ok()) return page.status();
      for (Run& run : *page->mutable_runs()) {
        if (names->size() == 1 || listed.insert(run.name()).second) list.mutable_runs()->Add(std::move(run));
      }
      request.set_page_token(page->next_page_token());
    } while (!request.page_token().empty());
  }
  if (const absl::Status status = SelectRuns(options.selection, *list.mutable_runs()); !status.ok())
    return status;
  if (const absl::Status status = session.Print({list, {RunTable(list.runs(), session.now())}}); !status.ok())
    return status;
  return ExitCode::kOk;
}

}  // namespace

void AddRunList(CLI::App& run, Action& chosen) {
  auto options = std::make_shared<RunListOptions>();
  CLI::App* command = run.add_subcommand("list", "List the runs of studies in the order of execution");
  command->add_option("STUDIES", options->studies, "Number, name, last, or 1-3,5")->required();
  command
      ->add_option("--state", options->state,
                   "Only runs that are queued, running, succeeded, failed, cancelled or skipped")
      ->check(CLI::IsMember({"queued", "running", "succeeded", "failed", "cancelled", "skipped"},
                            CLI::ignore_case));
  command
      ->add_option("--where", options->selection.where,
                   "Only runs that fulfil conditions, for example 'engine=native/* and "
                   "params.dropout>=0.1'; may be repeated")
      ->allow_extra_args(false);
  command->add_option(
      "--sort", options->selection.sort,
      "Sort by an axis, throughput, seconds, state, cause, ...; -throughput: the largest first");
  command->add_option("--limit", options->selection.limit, "At most this number of runs")
      ->check(CLI::PositiveNumber);
  command->callback(
      [options, &chosen] { chosen = [options](Session& s) { return ExecuteRunList(*options, s); }; });
}

}  // namespace scalelab::client
