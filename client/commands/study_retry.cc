// `scalelab study retry STUDIES --failed`: queues failed runs again.
#include "client/commands/commands.h"
#include "client/commands/each.h"

namespace scalelab::client {
namespace {

struct StudyRetryOptions {
  std::string studies;
  bool failed = false;
};

absl::StatusOr<ExitCode> ExecuteStudyRetry(const StudyRetryOptions& options, Session& session) {
  using scalelab::v1::Study;
  return ChangeStudies<scalelab::v1::RetryStudyRequest>(
      session, options.studies, &scalelab::v1::StudyService::Stub::RetryStudy,
      [](const Study& study) { return study.counts().failed() > 0; }, "nothing to retry");
}

}  // namespace

void AddStudyRetry(CLI::App& study, Action& chosen) {
  auto options = std::make_shared<StudyRetryOptions>();
  CLI::App* command =
      study.add_subcommand("retry", "Queue the failed runs of studies again, with new retries");
  command->add_option("STUDIES", options->studies, "Number, name, last, 1-3,5, or all")->required();
  command->add_flag("--failed", options->failed, "Which runs: those that have failed")->required();
  command->callback([options, &chosen] {
    chosen = [options](Session& session) { return ExecuteStudyRetry(*options, session); };
  });
}

}  // namespace scalelab::client
