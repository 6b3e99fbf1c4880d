// `scalelab study list [STUDIES]`: lists studies, newest first.
#include "client/commands/commands.h"
#include "client/commands/sections.h"
#include "client/session/selectors.h"

namespace scalelab::client {
namespace {

struct StudyListOptions {
  std::string studies = "all";
};

absl::StatusOr<ExitCode> ExecuteStudyList(const StudyListOptions& options, Session& session) {
  auto server = session.Server();
  if (!server.ok()) return server.status();
  auto studies = FindStudies(**server, options.studies);
  if (!studies.ok()) return studies.status();
  scalelab::v1::ListStudiesResponse list;
  for (auto& study : *studies) list.mutable_studies()->Add(std::move(study));
  if (const absl::Status status = session.Print({list, {StudyTable(list.studies(), session.now())}});
      !status.ok())
    return status;
  return ExitCode::kOk;
}

}  // namespace

void AddStudyList(CLI::App& study, Action& chosen) {
  auto options = std::make_shared<StudyListOptions>();
  CLI::App* command = study.add_subcommand("list", "List studies, newest first");
  command->add_option("STUDIES", options->studies, "Only these: 1-3,5, last, a name")->capture_default_str();
  command->callback([options, &chosen] {
    chosen = [options](Session& session) { return ExecuteStudyList(*options, session); };
  });
}

}  // namespace scalelab::client
