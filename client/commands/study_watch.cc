// `scalelab study watch STUDY`: shows progress until a study is final or paused.
#include "client/commands/commands.h"
#include "client/session/selectors.h"
#include "client/session/watcher.h"

namespace scalelab::client {
namespace {

struct StudyWatchOptions {
  std::string study = "last";
};

absl::StatusOr<ExitCode> ExecuteStudyWatch(const StudyWatchOptions& options, Session& session) {
  const auto name = StudyName(options.study);
  if (!name.ok()) return name.status();
  return WatchStudy(session, *name, session.io().out, session.io().out_terminal);
}

}  // namespace

void AddStudyWatch(CLI::App& study, Action& chosen) {
  auto options = std::make_shared<StudyWatchOptions>();
  CLI::App* command = study.add_subcommand(
      "watch",
      "Follow a study until it is over or paused; exits with 5 if it is paused or any run did not succeed");
  command->add_option("STUDY", options->study, "Number, name, or last")->capture_default_str();
  command->callback([options, &chosen] {
    chosen = [options](Session& session) { return ExecuteStudyWatch(*options, session); };
  });
}

}  // namespace scalelab::client
