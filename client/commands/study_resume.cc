// `scalelab study resume STUDIES`: ends the pause of studies.
#include "absl/strings/str_cat.h"
#include "client/commands/commands.h"
#include "client/commands/each.h"
#include "client/commands/sections.h"
#include "client/session/selectors.h"

namespace scalelab::client {
namespace {

using scalelab::v1::ListStudiesResponse;
using scalelab::v1::ResumeStudyRequest;
using scalelab::v1::StudyService;

struct Options {
  std::string studies;
};

absl::StatusOr<ExitCode> Run(const Options& options, Session& session) {
  auto server = session.Server();
  if (!server.ok()) return server.status();
  auto studies = FindStudies(**server, options.studies);
  if (!studies.ok()) return studies.status();
  std::vector<std::string> names;
  for (const auto& study : *studies) {
    if (options.studies != "all" || !study.pause_reason().empty()) names.push_back(study.name());
  }
  ListStudiesResponse resumed;
  const auto outcome = ForEach(session, names, [&](const std::string& name) {
    ResumeStudyRequest request;
    request.set_name(name);
    auto response = (*server)->Call((*server)->studies(), &StudyService::Stub::ResumeStudy, request);
    if (!response.ok()) return response.status();
    resumed.mutable_studies()->Add(std::move(*response->mutable_study()));
    return absl::OkStatus();
  });
  Answer answer{resumed, {StudyTable(resumed.studies())}};
  answer.sections[0].empty = "no study is paused";
  if (const absl::Status status = session.Print(answer); !status.ok()) return status;
  return outcome;
}

}  // namespace

void AddStudyResume(CLI::App& study, Action& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command = study.add_subcommand("resume", "End the pause of studies after failures");
  command->add_option("STUDIES", options->studies, "Number, name, last, 1-3,5, or all")->required();
  command->callback(
      [options, &chosen] { chosen = [options](Session& session) { return Run(*options, session); }; });
}

}  // namespace scalelab::client
