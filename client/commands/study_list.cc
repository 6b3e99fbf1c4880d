// `scalelab study list [STUDIES]`: lists studies, newest first.
#include <utility>

#include "client/commands/commands.h"
#include "client/commands/sections.h"
#include "client/selection/study_selection.h"
#include "client/session/selectors.h"

namespace scalelab::client {
namespace {

struct StudyListOptions {
  std::string studies = "all";
  std::vector<std::string> where;
  int limit = 0;  // 0: no limit
};

absl::StatusOr<ExitCode> ExecuteStudyList(const StudyListOptions& options, Session& session) {
  auto server = session.Server();
  if (!server.ok()) return server.status();
  // Conditions may select older studies, too.
  auto studies = FindStudies(**server, options.studies, options.where.empty() ? options.limit : 0);
  if (!studies.ok()) return studies.status();
  scalelab::v1::ListStudiesResponse list;
  for (auto& study : *studies) list.mutable_studies()->Add(std::move(study));
  if (const absl::Status status = SelectStudies(options.where, *list.mutable_studies()); !status.ok())
    return status;
  if (options.limit > 0 && list.studies_size() > options.limit)
    list.mutable_studies()->DeleteSubrange(options.limit, list.studies_size() - options.limit);
  Section table = StudyTable(list.studies(), session.now());
  if (!options.where.empty()) table.empty = "no such studies";
  if (const absl::Status status = session.Print({list, {std::move(table)}}); !status.ok()) return status;
  return ExitCode::kOk;
}

}  // namespace

void AddStudyList(CLI::App& study, Action& chosen) {
  auto options = std::make_shared<StudyListOptions>();
  CLI::App* command = study.add_subcommand("list", "List studies, newest first");
  command->add_option("STUDIES", options->studies, "Only these: 1-3,5, last, a name")->capture_default_str();
  command
      ->add_option("--where", options->where,
                   "Only studies that fulfil conditions, for example 'state=running and owner=ada'; "
                   "may be repeated")
      ->allow_extra_args(false);
  command->add_option("--limit", options->limit, "At most this number of studies")
      ->check(CLI::PositiveNumber);
  command->callback([options, &chosen] {
    chosen = [options](Session& session) { return ExecuteStudyList(*options, session); };
  });
}

}  // namespace scalelab::client
