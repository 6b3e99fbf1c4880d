// `scalelab study validate FILE`: checks a study file without a server.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/commands/commands.h"
#include "client/session/exit_code.h"
#include "google/protobuf/struct.pb.h"
#include "study/file/study_file.h"

namespace scalelab::client {
namespace {

struct StudyValidateOptions {
  std::string file;
  std::vector<std::string> set;
};

// Returns the result as a message for JSON output.
google::protobuf::Struct ValidationMessage(const absl::StatusOr<CheckedStudyFile>& checked) {
  google::protobuf::Struct message;
  auto& fields = *message.mutable_fields();
  fields["valid"].set_bool_value(checked.ok());
  auto& problems = *fields["problems"].mutable_list_value();
  if (!checked.ok()) {
    for (const absl::string_view problem : absl::StrSplit(checked.status().message(), '\n'))
      problems.add_values()->set_string_value(std::string(problem));
    return message;
  }
  const ExpandedStudy& study = checked->study;
  const auto cells = static_cast<double>(study.cells.size()) - study.baselines;
  const double repeats = study.spec.repeats();
  fields["cells"].set_number_value(cells);
  fields["excluded_cells"].set_number_value(static_cast<double>(study.excluded.size()));
  fields["repeats"].set_number_value(repeats);
  fields["runs"].set_number_value(cells * repeats);
  fields["baseline_runs"].set_number_value(study.baselines * repeats);
  for (const std::string& why : study.unusable)
    fields["left_out"].mutable_list_value()->add_values()->set_string_value(why);
  return message;
}

absl::StatusOr<ExitCode> ExecuteStudyValidate(const StudyValidateOptions& options, Session& session) {
  const auto checked = CheckStudyFile(options.file, options.set);
  if (session.options().output == OutputFormat::kJson) {
    if (const absl::Status s = session.Print({ValidationMessage(checked), {}}); !s.ok()) return s;
    return checked.ok() ? ExitCode::kOk : ExitCode::kUsage;
  }
  if (!checked.ok()) return AsInvalidInput(checked.status());
  const ExpandedStudy& study = checked->study;
  const int64_t cells = static_cast<int64_t>(study.cells.size()) - study.baselines;
  const int64_t repeats = study.spec.repeats();
  const auto count = [](int64_t n, const char* what) {
    return absl::StrCat(n, " ", what, n == 1 ? "" : "s");
  };
  const std::string baselines =
      study.baselines == 0 ? "" : absl::StrCat(" + ", count(study.baselines * repeats, "baseline run"));
  const auto excluded = static_cast<int64_t>(study.excluded.size());
  session.Say(absl::StrCat(options.file, ": valid, ", count(cells, "cell"), " x ", count(repeats, "repeat"),
                           " = ", count(cells * repeats, "run"), baselines, ", ", count(excluded, "cell"),
                           " excluded"));
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
