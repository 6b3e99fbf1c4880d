// `scalelab study explain STUDY`: shows why the next run of a study is not running.
#include "client/commands/commands.h"
#include "client/commands/sections.h"
#include "client/session/selectors.h"

namespace scalelab::client {
namespace {

using scalelab::v1::ExplainStudyRequest;
using scalelab::v1::StudyService;

struct StudyExplainOptions {
  std::string study;
};

absl::StatusOr<ExitCode> ExecuteStudyExplain(const StudyExplainOptions& options, Session& session) {
  const auto name = StudyName(options.study);
  if (!name.ok()) return name.status();
  auto server = session.Server();
  if (!server.ok()) return server.status();
  ExplainStudyRequest request;
  request.set_name(*name);
  const auto response = (*server)->Call((*server)->studies(), &StudyService::Stub::ExplainStudy, request);
  if (!response.ok()) return response.status();
  Section facts = Facts({{"study", response->study().name()},
                         {"name", response->study().display_name()},
                         {"state", StateCell(response->study().state())},
                         {"runs", CountsText(response->study().counts())}});
  const Answer answer{*response, {facts, ReasonTable(response->reasons(), session.now())}, 1};
  if (const absl::Status status = session.Print(answer); !status.ok()) return status;
  return ExitCode::kOk;
}

}  // namespace

void AddStudyExplain(CLI::App& study, Action& chosen) {
  auto options = std::make_shared<StudyExplainOptions>();
  CLI::App* command = study.add_subcommand(
      "explain", "Show why a study's next run is not running; the first reason must be resolved first");
  command->add_option("STUDY", options->study, "Number, name, or last")->required();
  command->callback([options, &chosen] {
    chosen = [options](Session& session) { return ExecuteStudyExplain(*options, session); };
  });
}

}  // namespace scalelab::client
