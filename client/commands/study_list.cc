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
  StudySelection selection;
};

absl::StatusOr<ExitCode> ExecuteStudyList(const StudyListOptions& options, Session& session) {
  auto server = session.Server();
  if (!server.ok()) return server.status();
  // Older studies may fulfil the conditions, or be the first in another order.
  const StudySelection& selection = options.selection;
  const bool newest = selection.where.empty() && selection.sort.empty();
  auto studies = FindStudies(**server, options.studies, newest ? selection.limit : 0);
  if (!studies.ok()) return studies.status();
  scalelab::v1::ListStudiesResponse list;
  for (auto& study : *studies) list.mutable_studies()->Add(std::move(study));
  if (const absl::Status status = SelectStudies(selection, *list.mutable_studies()); !status.ok())
    return status;
  Section table = StudyTable(list.studies(), session.now());
  if (!selection.where.empty()) table.empty = "no such studies";
  if (const absl::Status status = session.Print({list, {std::move(table)}}); !status.ok()) return status;
  return ExitCode::kOk;
}

}  // namespace

void AddStudyList(CLI::App& study, Action& chosen) {
  auto options = std::make_shared<StudyListOptions>();
  CLI::App* command = study.add_subcommand("list", "List studies, newest first");
  command->add_option("STUDIES", options->studies, "Only these: 1-3,5, last, a name")->capture_default_str();
  command
      ->add_option("--where", options->selection.where,
                   "Only studies that fulfil conditions, for example 'state=running and owner=ada'; "
                   "may be repeated")
      ->allow_extra_args(false);
  command->add_option("--sort", options->selection.sort,
                      "Sort by number, name, owner, state, queued, running, succeeded, failed, cancelled or "
                      "skipped; -failed: the largest first");
  command->add_option("--limit", options->selection.limit, "At most this number of studies")
      ->check(CLI::PositiveNumber);
  command->callback([options, &chosen] {
    chosen = [options](Session& session) { return ExecuteStudyList(*options, session); };
  });
}

}  // namespace scalelab::client
