// `scalelab study priority STUDIES PRIORITY`: changes the priority of studies.
#include "client/commands/commands.h"
#include "client/commands/each.h"
#include "client/session/progress.h"

namespace scalelab::client {
namespace {

struct StudyPriorityOptions {
  std::string studies;
  int priority = 0;
};

absl::StatusOr<ExitCode> ExecuteStudyPriority(const StudyPriorityOptions& options, Session& session) {
  using scalelab::v1::Study;
  scalelab::v1::SetStudyPriorityRequest request;
  request.set_priority(options.priority);
  return ChangeStudies(
      session, options.studies, &scalelab::v1::StudyService::Stub::SetStudyPriority,
      [](const Study& study) { return !IsFinal(study); }, "no study to change", request);
}

}  // namespace

void AddStudyPriority(CLI::App& study, Action& chosen) {
  auto options = std::make_shared<StudyPriorityOptions>();
  CLI::App* command =
      study.add_subcommand("priority", "Change the priority of studies; those with a higher one come first");
  command->add_option("STUDIES", options->studies, "Number, name, last, 1-3,5, or all")->required();
  command
      ->add_option("PRIORITY", options->priority,
                   "From -1000 to 1000; a study has 0 unless its file says otherwise")
      ->required()
      ->check(CLI::Range(-1000, 1000));
  command->callback([options, &chosen] {
    chosen = [options](Session& session) { return ExecuteStudyPriority(*options, session); };
  });
}

}  // namespace scalelab::client
