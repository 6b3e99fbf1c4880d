// `scalelab study hold STUDIES`: holds studies.
#include "client/commands/commands.h"
#include "client/commands/each.h"
#include "client/session/progress.h"

namespace scalelab::client {
namespace {

struct StudyHoldOptions {
  std::string studies;
};

absl::StatusOr<ExitCode> ExecuteStudyHold(const StudyHoldOptions& options, Session& session) {
  using scalelab::v1::Study;
  return ChangeStudies<scalelab::v1::HoldStudyRequest>(
      session, options.studies, &scalelab::v1::StudyService::Stub::HoldStudy,
      [](const Study& study) { return !study.held() && !IsFinal(study); }, "nothing to hold");
}

}  // namespace

void AddStudyHold(CLI::App& study, Action& chosen) {
  auto options = std::make_shared<StudyHoldOptions>();
  CLI::App* command = study.add_subcommand(
      "hold", "Begin no queued run of these studies until `release`; running ones continue");
  command->add_option("STUDIES", options->studies, "Number, name, last, 1-3,5, or all")->required();
  command->callback([options, &chosen] {
    chosen = [options](Session& session) { return ExecuteStudyHold(*options, session); };
  });
}

}  // namespace scalelab::client
