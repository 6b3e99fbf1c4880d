// `scalelab study validate FILE`: checks a study file without a server.
#include "absl/strings/str_cat.h"
#include "client/commands/commands.h"
#include "client/session/exit_code.h"
#include "study/file/study_file.h"

namespace scalelab::client {
namespace {

struct StudyValidateOptions {
  std::string file;
  std::vector<std::string> set;
};

absl::StatusOr<ExitCode> ExecuteStudyValidate(const StudyValidateOptions& options, Session& session) {
  const auto checked = CheckStudyFile(options.file, options.set);
  if (!checked.ok()) return AsInvalidInput(checked.status());
  const ExpandedStudy& study = checked->study;
  const int64_t cells = static_cast<int64_t>(study.cells.size()) - study.baselines;
  const int64_t repeats = study.spec.repeats();
  const std::string baselines =
      study.baselines == 0 ? "" : absl::StrCat(" + ", study.baselines * repeats, " baseline runs");
  session.Say(absl::StrCat(options.file, ": valid, ", cells, " cells x ", repeats,
                           " repeats = ", cells * repeats, " runs", baselines, ", ", study.excluded.size(),
                           " cells excluded"));
  for (const std::string& why : study.unusable) session.Say(absl::StrCat("left out: ", why));
  return ExitCode::kOk;
}

}  // namespace

void AddStudyValidate(CLI::App& study, Action& chosen) {
  auto options = std::make_shared<StudyValidateOptions>();
  CLI::App* command = study.add_subcommand("validate", "Check a study file; needs no server");
  command->add_option("FILE", options->file, "The study file; - reads standard input")->required();
  command
      ->add_option("--set", options->set,
                   "Replaces a value of the file, for example --set matrix.ranks=[1,2]; may be repeated")
      ->allow_extra_args(false);
  command->callback([options, &chosen] {
    chosen = [options](Session& session) { return ExecuteStudyValidate(*options, session); };
  });
}

}  // namespace scalelab::client
