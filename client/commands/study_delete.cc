// `scalelab study delete STUDIES`: deletes finished studies.
#include "absl/strings/str_cat.h"
#include "client/commands/commands.h"
#include "client/commands/each.h"
#include "client/session/selectors.h"

namespace scalelab::client {
namespace {

using scalelab::v1::DeleteStudyRequest;
using scalelab::v1::StudyService;

struct Options {
  std::string studies;
};

absl::StatusOr<ExitCode> Run(const Options& options, Session& session) {
  auto server = session.Server();
  if (!server.ok()) return server.status();
  // Names are resolved first: the server refuses to delete "last", because a repeated call would
  // delete another study.
  const auto studies = FindStudies(**server, options.studies);
  if (!studies.ok()) return studies.status();
  std::vector<std::string> names;
  for (const auto& study : *studies) names.push_back(study.name());
  return ForEach(session, names, [&](const std::string& name) {
    DeleteStudyRequest request;
    request.set_name(name);
    const auto response = (*server)->Call((*server)->studies(), &StudyService::Stub::DeleteStudy, request);
    if (response.ok()) session.Say(absl::StrCat("deleted ", name));
    return response.status();
  });
}

}  // namespace

void AddStudyDelete(CLI::App& study, Action& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command = study.add_subcommand("delete", "Delete finished studies with their runs and points");
  command->add_option("STUDIES", options->studies, "Number, name, last, 1-3,5, or all")->required();
  command->callback(
      [options, &chosen] { chosen = [options](Session& session) { return Run(*options, session); }; });
}

}  // namespace scalelab::client
