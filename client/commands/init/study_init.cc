// `scalelab study init TEMPLATE`: writes a study file with comments as a starting point.
#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/commands/init/init.h"
#include "client/commands/init/templates.h"
#include "client/output/file.h"
#include "google/protobuf/struct.pb.h"

namespace scalelab::client {
namespace {

struct InitOptions {
  std::string name, file;
};

absl::StatusOr<ExitCode> ListTemplates(Session& session) {
  google::protobuf::ListValue message;
  Section section;
  section.columns = {{"template"}, {"what it measures"}};
  for (const StudyTemplate& known : StudyTemplates())
    message.add_values()->set_string_value(std::string(known.name));
  section.rows = [](const RowSink& sink) {
    for (const StudyTemplate& known : StudyTemplates())
      sink({std::string(known.name), std::string(known.summary)});
  };
  if (const absl::Status status = session.Print({message, {std::move(section)}}); !status.ok()) return status;
  session.Say("`scalelab study init TEMPLATE` writes a file");
  return ExitCode::kOk;
}

absl::Status WriteNew(const std::string& path, absl::string_view text, Session& session) {
  std::error_code unknown;
  if (std::filesystem::exists(path, unknown))
    return absl::AlreadyExistsError(
        absl::StrCat(path, " exists; remove it, or name another file with --file"));
  if (const absl::Status status = ReplaceFile(path, text); !status.ok()) return status;
  session.Say(absl::StrCat("wrote ", path));
  return absl::OkStatus();
}

absl::StatusOr<ExitCode> ExecuteStudyInit(const InitOptions& options, Session& session) {
  if (options.name.empty()) return ListTemplates(session);
  const auto& templates = StudyTemplates();
  // The parser has checked the name.
  const auto found = std::find_if(templates.begin(), templates.end(),
                                  [&](const StudyTemplate& known) { return known.name == options.name; });
  if (options.file == "-") {
    session.io().out << found->text;
    if (const absl::Status status = Flush(session.io().out); !status.ok()) return status;
    return ExitCode::kOk;
  }
  const std::string path = options.file.empty() ? absl::StrCat(found->name, ".yaml") : options.file;
  if (const absl::Status status = WriteNew(path, found->text, session); !status.ok()) return status;
  if (found->file.empty()) return ExitCode::kOk;
  const std::filesystem::path program = std::filesystem::path(path).parent_path() / std::string(found->file);
  std::error_code unknown;
  if (std::filesystem::exists(program, unknown)) {
    session.Say(absl::StrCat("kept ", program.string(), ", which exists"));
    return ExitCode::kOk;
  }
  if (const absl::Status status = WriteNew(program.string(), found->file_text, session); !status.ok())
    return status;
  return ExitCode::kOk;
}

}  // namespace

void AddStudyInit(CLI::App& study, Action& chosen) {
  auto options = std::make_shared<InitOptions>();
  CLI::App* command =
      study.add_subcommand("init", "Write a commented study file to begin with, or list the templates");
  std::vector<std::string> names;
  for (const StudyTemplate& known : StudyTemplates()) names.emplace_back(known.name);
  command->add_option("TEMPLATE", options->name, "One of the templates; without it they are listed")
      ->check(CLI::IsMember(std::move(names)));
  command->add_option("--file", options->file, "File to write (TEMPLATE.yaml); - is standard output");
  command->callback(
      [options, &chosen] { chosen = [options](Session& s) { return ExecuteStudyInit(*options, s); }; });
}

}  // namespace scalelab::client
