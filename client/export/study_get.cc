// `scalelab study get STUDY`: prints the study file that a study was submitted with.
#include "client/export/export.h"
#include "client/export/study_yaml.h"
#include "client/output/json_printer.h"
#include "client/session/selectors.h"
#include "google/protobuf/util/message_differencer.h"
#include "study/file/study_file.h"

namespace scalelab::client {
namespace {

struct StudyGetOptions {
  std::string study;
  bool rendered = false;
};

// Returns whether the text alone gives the specification, wherever it is submitted.
bool GivesSpec(const std::string& text, const scalelab::v1::StudySpec& spec) {
  const absl::StatusOr<StudyFile> file = ReadStudyText(text, "study");
  return file.ok() && google::protobuf::util::MessageDifferencer::Equals(file->spec, spec);
}

absl::StatusOr<ExitCode> PrintStudyFile(const StudyGetOptions& options, Session& session) {
  const auto name = StudyName(options.study);
  if (!name.ok()) return name.status();
  auto server = session.Server();
  if (!server.ok()) return server.status();
  const bool json = session.options().output == OutputFormat::kJson;
  scalelab::v1::GetStudyRequest request;
  request.set_name(*name);
  request.set_with_study_file(!json && !options.rendered);
  const auto response =
      (*server)->Call((*server)->studies(), &scalelab::v1::StudyService::Stub::GetStudy, request);
  if (!response.ok()) return response.status();
  const auto& spec = response->study().spec();
  const bool submitted = request.with_study_file() && response->has_study_file();
  if (json) {
    session.io().out << ToJson(spec, true);
  } else {
    session.io().out << (submitted ? response->study_file() : StudyYaml(spec));
  }
  if (const absl::Status status = Flush(session.io().out); !status.ok()) return status;
  if (submitted && !GivesSpec(response->study_file(), spec)) {
    session.Say(
        "this file alone does not give the specification of the study: relative paths start at the "
        "directory of the submitted file, and the configuration of its owner may have added settings; "
        "--rendered prints the whole specification");
  }
  return ExitCode::kOk;
}

}  // namespace

void AddStudyGet(CLI::App& study, Action& chosen) {
  auto options = std::make_shared<StudyGetOptions>();
  CLI::App* command =
      study.add_subcommand("get", "Print the study file again, to change it or to submit it once more");
  command->add_option("STUDY", options->study, "Number, name, or last")->required();
  command->add_flag("--rendered", options->rendered,
                    "Print a file made from the specification, without comments and with absolute paths. "
                    "Studies that were submitted with --set or with a file of more than 256 KiB are always "
                    "printed so");
  command->callback([options, &chosen] {
    chosen = [options](Session& session) { return PrintStudyFile(*options, session); };
  });
}

}  // namespace scalelab::client
