// `scalelab study cancel STUDIES`: cancels studies.
#include "client/commands/commands.h"
#include "client/commands/each.h"
#include "client/session/progress.h"

namespace scalelab::client {
namespace {

struct StudyCancelOptions {
  std::string studies;
};

absl::StatusOr<ExitCode> ExecuteStudyCancel(const StudyCancelOptions& options, Session& session) {
  using scalelab::v1::Study;
  return ChangeStudies<scalelab::v1::CancelStudyRequest>(
      session, options.studies, &scalelab::v1::StudyService::Stub::CancelStudy,
      [](const Study& study) { return !IsFinal(study); }, "nothing to cancel");
}

}  // namespace

void AddStudyCancel(CLI::App& study, Action& chosen) {
  auto options = std::make_shared<StudyCancelOptions>();
  CLI::App* command = study.add_subcommand(
      "cancel", "Cancel studies: queued runs end at once, running ones when they have stopped");
  command->add_option("STUDIES", options->studies, "Number, name, last, 1-3,5, or all")->required();
  command->callback([options, &chosen] {
    chosen = [options](Session& session) { return ExecuteStudyCancel(*options, session); };
  });
}

}  // namespace scalelab::client
