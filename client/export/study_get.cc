// `scalelab study get STUDY`: prints the specification of a study as a study file.
#include "client/export/export.h"
#include "client/export/study_yaml.h"
#include "client/output/json_printer.h"
#include "client/session/selectors.h"

namespace scalelab::client {
namespace {

absl::StatusOr<ExitCode> GetStudyFile(const std::string& study, Session& session) {
  const auto name = StudyName(study);
  if (!name.ok()) return name.status();
  auto server = session.Server();
  if (!server.ok()) return server.status();
  scalelab::v1::GetStudyRequest request;
  request.set_name(*name);
  const auto response =
      (*server)->Call((*server)->studies(), &scalelab::v1::StudyService::Stub::GetStudy, request);
  if (!response.ok()) return response.status();
  const auto& spec = response->study().spec();
  const bool json = session.options().output == OutputFormat::kJson;
  session.io().out << (json ? ToJson(spec, true) : StudyYaml(spec));
  if (const absl::Status status = Flush(session.io().out); !status.ok()) return status;
  return ExitCode::kOk;
}

}  // namespace

void AddStudyGet(CLI::App& study, Action& chosen) {
  auto name = std::make_shared<std::string>();
  CLI::App* command =
      study.add_subcommand("get", "Print the study file again, to change it or to submit it once more");
  command->add_option("STUDY", *name, "Number, name, or last")->required();
  command->callback([name, &chosen] { chosen = [name](Session& s) { return GetStudyFile(*name, s); }; });
}

}  // namespace scalelab::client
