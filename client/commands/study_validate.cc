// `scalelab study validate FILE`: checks a study file without a server.
#include "absl/strings/str_cat.h"
#include "client/commands/commands.h"
#include "client/session/exit_code.h"
#include "study/file/study_file.h"

namespace scalelab::client {
namespace {

struct Options {
  std::string file;
};

absl::StatusOr<ExitCode> Run(const Options& options, Session& session) {
  const auto checked = CheckStudyFile(options.file);
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
  auto options = std::make_shared<Options>();
  CLI::App* command = study.add_subcommand("validate", "Check a study file; needs no server");
  command->add_option("FILE", options->file, "The study file")->required();
  command->callback(
      [options, &chosen] { chosen = [options](Session& session) { return Run(*options, session); }; });
}

}  // namespace scalelab::client
