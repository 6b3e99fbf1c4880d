// `scalelab study show STUDY`: shows one study and its specification.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/commands/commands.h"
#include "client/commands/sections.h"
#include "client/output/text.h"
#include "client/session/selectors.h"

namespace scalelab::client {
namespace {

using scalelab::v1::Axis;
using scalelab::v1::GetStudyRequest;
using scalelab::v1::Study;
using scalelab::v1::StudyService;

struct StudyShowOptions {
  std::string study;
};

std::string AxisText(const Axis& axis) {
  return absl::StrCat(axis.key(), ": ",
                      absl::StrJoin(axis.values(), ", ", [](std::string* out, const auto& value) {
                        absl::StrAppend(out, ValueText(value));
                      }));
}

// Describes the origin of an imported study; "" for other studies.
std::string OriginText(const Study& study) {
  if (!study.has_origin()) return "";
  const auto& origin = study.origin();
  return absl::StrCat(origin.study(), " of ", origin.server(), ", by ", origin.imported_by(), " on ",
                      LocalTime(origin.import_time()), ", bundle ", origin.sha256());
}

Section StudyShowDetails(const Study& study, absl::Time now) {
  const auto& spec = study.spec();
  std::vector<std::pair<std::string, Cell>> facts = {
      {"study", study.name()},
      {"name", study.display_name()},
      {"owner", study.owner()},
      {"state", StateCell(study.state())},
      {"paused", Cell(study.pause_reason(), Tone::kBad)},
      {"held", study.held() ? "yes, until `study release`" : ""},
      {"priority", study.priority() != 0 ? absl::StrCat(study.priority()) : ""},
      {"imported", OriginText(study)},
      {"runs", CountsText(study.counts())},
      {"created", LocalTime(study.create_time())},
      {"started", LocalTime(study.start_time())},
      {"finished", LocalTime(study.finish_time())},
      {"took", Took(study.start_time(), study.finish_time(), now)}};
  if (!study.has_spec()) return Facts(std::move(facts));
  facts.emplace_back("fixed", KeyText(spec.fixed()));
  for (const Axis& axis : spec.matrix()) facts.emplace_back("axis", AxisText(axis));
  for (const auto& group : spec.zip()) {
    for (const Axis& axis : group.axes()) facts.emplace_back("zip", AxisText(axis));
  }
  for (const auto& excluded : spec.exclude()) facts.emplace_back("exclude", KeyText(excluded));
  facts.emplace_back("scaling", EnumText(scalelab::v1::Scaling::Mode_Name(spec.scaling().mode())));
  facts.emplace_back("repeats", RepeatsText(spec));
  facts.emplace_back("seed", absl::StrCat(spec.seed()));
  facts.emplace_back("measures", spec.measure().communication() ? "communication" : "");
  facts.emplace_back("partition", spec.resources().partition());
  const int allocations = spec.limits().concurrent_allocations();
  facts.emplace_back("allocations",
                     allocations > 0 ? absl::StrCat("at most ", allocations, " at the same time") : "");
  return Facts(std::move(facts));
}

absl::StatusOr<ExitCode> ExecuteStudyShow(const StudyShowOptions& options, Session& session) {
  const auto name = StudyName(options.study);
  if (!name.ok()) return name.status();
  auto server = session.Server();
  if (!server.ok()) return server.status();
  GetStudyRequest request;
  request.set_name(*name);
  const auto response = (*server)->Call((*server)->studies(), &StudyService::Stub::GetStudy, request);
  if (!response.ok()) return response.status();
  google::protobuf::RepeatedPtrField<Study> one;
  *one.Add() = response->study();
  Answer answer{
      *response, {StudyShowDetails(response->study(), session.now()), StudyTable(one, session.now())}, 1};
  answer.sections[1].in_tables = false;
  if (const absl::Status status = session.Print(answer); !status.ok()) return status;
  return ExitCode::kOk;
}

}  // namespace

void AddStudyShow(CLI::App& study, Action& chosen) {
  auto options = std::make_shared<StudyShowOptions>();
  CLI::App* command = study.add_subcommand("show", "Show one study and what was submitted");
  command->add_option("STUDY", options->study, "Number, name, or last")->required();
  command->callback([options, &chosen] {
    chosen = [options](Session& session) { return ExecuteStudyShow(*options, session); };
  });
}

}  // namespace scalelab::client
