// `scalelab study validate FILE`: checks a study file without a server.
#include "absl/strings/str_cat.h"
#include "client/commands/commands.h"
#include "client/exit_code.h"
#include "client/study_file.h"

namespace scalelab::client {
namespace {

struct Options {
  std::string file;
};

absl::StatusOr<ExitCode> Run(const Options& options, Session& session) {
  const auto checked = CheckStudyFile(options.file);
  if (!checked.ok()) return AsInvalidInput(checked.status());
  const ExpandedStudy& study = checked->study;
  session.Say(absl::StrCat(options.file, ": valid, ", study.cells.size(), " cells x ", study.spec.repeats(),
                           " repeats = ", study.runs.size(), " runs, ", study.excluded.size(),
                           " cells excluded"));
  return ExitCode::kOk;
}

}  // namespace

void AddStudyValidate(CLI::App& study, Action& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command = study.add_subcommand("validate", "Check a study file; needs no server");
  command->add_option("FILE", options->file, "The study file")->required();
  command->callback(
      [options, &chosen] { chosen = [options](Session& session) { return Run(*options, session); }; });
}

}  // namespace scalelab::client
