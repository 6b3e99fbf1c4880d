// `scalelab study cancel STUDIES`: cancels studies.
#include "absl/strings/str_cat.h"
#include "client/commands/commands.h"
#include "client/commands/each.h"
#include "client/commands/sections.h"
#include "client/session/progress.h"
#include "client/session/selectors.h"

namespace scalelab::client {
namespace {

using scalelab::v1::CancelStudyRequest;
using scalelab::v1::ListStudiesResponse;
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
    if (options.studies != "all" || !IsFinal(study)) names.push_back(study.name());
  }
  ListStudiesResponse cancelled;
  const auto outcome = ForEach(session, names, [&](const std::string& name) {
    CancelStudyRequest request;
    request.set_name(name);
    auto response = (*server)->Call((*server)->studies(), &StudyService::Stub::CancelStudy, request);
    if (!response.ok()) return response.status();
    cancelled.mutable_studies()->Add(std::move(*response->mutable_study()));
    return absl::OkStatus();
  });
  Answer answer{cancelled, {StudyTable(cancelled.studies())}};
  answer.sections[0].empty = "nothing to cancel";
  if (const absl::Status status = session.Print(answer); !status.ok()) return status;
  return outcome;
}

}  // namespace

void AddStudyCancel(CLI::App& study, Action& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      study.add_subcommand("cancel", "Cancel studies: queued runs at once, running ones when they stop");
  command->add_option("STUDIES", options->studies, "Number, name, last, 1-3,5, or all")->required();
  command->callback(
      [options, &chosen] { chosen = [options](Session& session) { return Run(*options, session); }; });
}

}  // namespace scalelab::client
