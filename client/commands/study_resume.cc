// `scalelab study resume STUDIES`: ends the pause of studies.
#include "client/commands/commands.h"
#include "client/commands/each.h"

namespace scalelab::client {
namespace {

struct StudyResumeOptions {
  std::string studies;
};

absl::StatusOr<ExitCode> ExecuteStudyResume(const StudyResumeOptions& options, Session& session) {
  using scalelab::v1::Study;
  return ChangeStudies<scalelab::v1::ResumeStudyRequest>(
      session, options.studies, &scalelab::v1::StudyService::Stub::ResumeStudy,
      [](const Study& study) { return !study.pause_reason().empty(); }, "no study is paused");
}

}  // namespace

void AddStudyResume(CLI::App& study, Action& chosen) {
  auto options = std::make_shared<StudyResumeOptions>();
  CLI::App* command = study.add_subcommand("resume", "End the pause of studies after failures");
  command->add_option("STUDIES", options->studies, "Number, name, last, 1-3,5, or all")->required();
  command->callback([options, &chosen] {
    chosen = [options](Session& session) { return ExecuteStudyResume(*options, session); };
  });
}

}  // namespace scalelab::client
