// `scalelab study retry STUDIES --failed`: queues failed runs again.
#include "absl/strings/str_cat.h"
#include "client/commands/commands.h"
#include "client/commands/each.h"
#include "client/commands/sections.h"
#include "client/session/selectors.h"

namespace scalelab::client {
namespace {

using scalelab::v1::ListStudiesResponse;
using scalelab::v1::RetryStudyRequest;
using scalelab::v1::StudyService;

struct Options {
  std::string studies;
  bool failed = false;
};

absl::StatusOr<ExitCode> Run(const Options& options, Session& session) {
  auto server = session.Server();
  if (!server.ok()) return server.status();
  auto studies = FindStudies(**server, options.studies);
  if (!studies.ok()) return studies.status();
  std::vector<std::string> names;
  for (const auto& study : *studies) {
    if (options.studies != "all" || study.counts().failed() > 0) names.push_back(study.name());
  }
  ListStudiesResponse retried;
  const auto outcome = ForEach(session, names, [&](const std::string& name) {
    RetryStudyRequest request;
    request.set_name(name);
    auto response = (*server)->Call((*server)->studies(), &StudyService::Stub::RetryStudy, request);
    if (!response.ok()) return response.status();
    retried.mutable_studies()->Add(std::move(*response->mutable_study()));
    return absl::OkStatus();
  });
  Answer answer{retried, {StudyTable(retried.studies())}};
  answer.sections[0].empty = "nothing to retry";
  if (const absl::Status status = session.Print(answer); !status.ok()) return status;
  return outcome;
}

}  // namespace

void AddStudyRetry(CLI::App& study, Action& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      study.add_subcommand("retry", "Queue the failed runs of studies again, with new retries");
  command->add_option("STUDIES", options->studies, "Number, name, last, 1-3,5, or all")->required();
  command->add_flag("--failed", options->failed, "Which runs: those that have failed")->required();
  command->callback(
      [options, &chosen] { chosen = [options](Session& session) { return Run(*options, session); }; });
}

}  // namespace scalelab::client
