// `scalelab study wait STUDY [--timeout 60s]`: waits silently until a study is final or paused.
#include "client/commands/commands.h"
#include "client/session/interrupt.h"
#include "client/session/progress.h"
#include "client/session/selectors.h"
#include "client/session/watcher.h"

namespace scalelab::client {
namespace {

struct StudyWaitOptions {
  std::string study = "last";
};

absl::StatusOr<ExitCode> ExecuteStudyWait(const StudyWaitOptions& options, Session& session) {
  const auto name = StudyName(options.study);
  if (!name.ok()) return name.status();
  SetInterruptWords("stopped waiting; the study continues");
  scalelab::v1::WatchStudyResponse last;
  const auto study = FollowStudy(session, *name, [&last](const auto& look) { last = look; });
  if (!study.ok()) return study.status();
  session.Say(ProgressLine(last));
  return OutcomeOf(*study);
}

}  // namespace

void AddStudyWait(CLI::App& study, Action& chosen) {
  auto options = std::make_shared<StudyWaitOptions>();
  CLI::App* command = study.add_subcommand("wait",
                                           "Wait silently until a study is over or paused; exits with 5 if "
                                           "it is paused or any run did not succeed, 8 on timeout");
  command->add_option("STUDY", options->study, "Number, name, or last")->capture_default_str();
  command->callback([options, &chosen] {
    chosen = [options](Session& session) { return ExecuteStudyWait(*options, session); };
  });
}

}  // namespace scalelab::client
