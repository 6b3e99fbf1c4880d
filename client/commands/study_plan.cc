// `scalelab study plan FILE`: shows the runs and jobs of a study without submitting it. The server
// computes the plan.
#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "catalog/enum_word.h"
#include "client/commands/commands.h"
#include "client/commands/sections.h"
#include "client/output/cells.h"
#include "client/output/text.h"
#include "client/session/exit_code.h"
#include "client/session/server_options.h"
#include "study/file/study_file.h"

namespace scalelab::client {
namespace {

using scalelab::v1::PlanStudyRequest;
using scalelab::v1::PlanStudyResponse;
using scalelab::v1::StudyService;
using In = Column::In;

struct StudyPlanOptions {
  std::string file;
  std::vector<std::string> set;
  bool scripts = false;
};

Section Cells(const PlanStudyResponse& plan) {
  std::vector<const google::protobuf::Struct*> keys;
  for (const auto& cell : plan.cells()) keys.push_back(&cell.key());
  std::vector<std::string> axes = AxesOf(keys);
  // These have columns of their own.
  for (const char* name : {"ranks", "global_batch", "batch_per_rank"}) std::erase(axes, name);
  const bool rate_is_axis = std::erase(axes, "learning_rate") > 0;
  Section section;
  for (const std::string& axis : axes) section.columns.push_back({axis, In::kAll, false, true});
  for (const char* title : {"ranks", "global_batch"}) section.columns.push_back({title, In::kAll, true});
  section.columns.push_back({"batch_per_rank", In::kAll, true, false, 2});
  section.columns.push_back({"learning_rate", In::kAll, true, false, rate_is_axis ? 0 : 1});
  const bool steps = std::any_of(plan.cells().begin(), plan.cells().end(),
                                 [](const auto& cell) { return cell.steps() > 0; });
  section.columns.push_back({"steps", steps ? In::kAll : In::kCsv, true});
  section.rows = [&plan, axes](const RowSink& sink) {
    for (const auto& cell : plan.cells()) {
      std::vector<Cell> row;
      for (const std::string& axis : axes) row.emplace_back(AxisText(cell.key(), axis));
      for (std::string text : {absl::StrCat(cell.ranks()), absl::StrCat(cell.global_batch()),
                               absl::StrCat(cell.batch_per_rank()), Exact(cell.learning_rate()),
                               cell.steps() > 0 ? absl::StrCat(cell.steps()) : ""}) {
        row.emplace_back(std::move(text));
      }
      sink(row);
    }
  };
  return section;
}

// Returns a table of allocations. Equal allocations share a row, which contains their number.
Section StudyPlanAllocations(const PlanStudyResponse& plan) {
  Section section;
  section.title = "Allocations";
  for (const char* title :
       {"number", "nodes", "ranks/node", "cpus/node", "gpus/node", "time limit", "runs"}) {
    section.columns.push_back({title, In::kAll, true});
  }
  section.rows = [&plan](const RowSink& sink) {
    std::vector<std::pair<std::vector<std::string>, int>> lines;
    std::map<std::vector<std::string>, size_t> seen;
    for (const auto& a : plan.allocations()) {
      std::vector<std::string> line = {absl::StrCat(a.nodes()),
                                       absl::StrCat(a.ranks_per_node()),
                                       absl::StrCat(a.cpus_per_node()),
                                       absl::StrCat(a.gpus_per_node()),
                                       Span(static_cast<double>(a.time_seconds())),
                                       absl::StrCat(a.runs())};
      const auto [it, added] = seen.try_emplace(line, lines.size());
      if (added) lines.emplace_back(line, 0);
      ++lines[it->second].second;
    }
    for (const auto& [line, number] : lines) {
      std::vector<Cell> row = {absl::StrCat(number)};
      for (const std::string& text : line) row.emplace_back(text);
      sink(row);
    }
  };
  return section;
}

// Returns for example "2 at the same time".
std::string AllocationsText(const PlanStudyResponse& plan, const scalelab::v1::StudySpec& spec) {
  const int at_once = std::min(plan.allocations_size(), ConcurrentAllocations(spec));
  if (plan.allocations_size() == at_once)
    return at_once == 1 ? "1" : absl::StrCat(at_once, " at the same time");
  return absl::StrCat(plan.allocations_size(), ", ", at_once, " at the same time");
}

// Returns the setting with which each node count gets allocations of its own, if that would save node-hours;
// otherwise "".
std::string OwnSizesText(const PlanStudyResponse& plan, const scalelab::v1::StudySpec& spec) {
  if (plan.node_hours_own() >= plan.node_hours_largest() || plan.own_sizes() <= ConcurrentAllocations(spec))
    return "";
  return absl::StrCat("limits.concurrent_allocations: ", plan.own_sizes());
}

// Returns for example "mail ada@uni.example on end", and where a default was written; "" without notifications.
std::string NotifyText(const StudyFile& file) {
  using scalelab::v1::Notify;
  if (!file.spec.has_notify()) return "";
  const Notify& notify = file.spec.notify();
  std::vector<std::string> receivers, occasions;
  for (const auto& [kind, value] : {std::pair("mail", notify.mail()), std::pair("webhook", notify.webhook()),
                                    std::pair("command", notify.command())}) {
    if (!value.empty()) receivers.push_back(absl::StrCat(kind, " ", value));
  }
  for (const int event : notify.on())
    occasions.push_back(EnumWord(Notify::Event_Name(static_cast<Notify::Event>(event))));
  if (occasions.empty()) occasions = {"end", "first_failure"};
  std::string text = absl::StrCat(absl::StrJoin(receivers, ", "), " on ", absl::StrJoin(occasions, ", "));
  for (const DefaultSection& section : file.defaults) {
    if (section.key == "notify") absl::StrAppend(&text, " (", section.place, ")");
  }
  return text;
}

absl::StatusOr<ExitCode> ExecuteStudyPlan(const StudyPlanOptions& options, Session& session) {
  const auto defaults = StudyDefaults();
  if (!defaults.ok()) return defaults.status();
  const auto checked = CheckStudyFile(options.file, options.set, *defaults);
  if (!checked.ok()) return AsInvalidInput(checked.status());
  auto server = session.Server(kFrameworksLimit);
  if (!server.ok()) return server.status();
  PlanStudyRequest request;
  *request.mutable_spec() = checked->file.spec;
  const auto plan = (*server)->Call((*server)->studies(), &StudyService::Stub::PlanStudy, request);
  if (!plan.ok()) return AsInvalidInput(Locate(checked->file, plan.status()));

  Answer answer{*plan, {Cells(*plan), StudyPlanAllocations(*plan)}};
  std::vector<std::pair<std::string, Cell>> facts = {
      {"cells", absl::StrCat(plan->cells_size())},
      {"repeats", RepeatsText(checked->study.spec)},
      {"runs", RunsText(plan->runs(), plan->baseline_runs())},
      {"excluded cells", plan->excluded() > 0 ? absl::StrCat(plan->excluded()) : ""},
      {"allocations", AllocationsText(*plan, checked->study.spec)},
      {"node-hours, largest allocations",
       plan->node_hours_largest() > 0 ? Short(plan->node_hours_largest()) : ""},
      {"node-hours, own sizes", plan->node_hours_own() > 0 ? Short(plan->node_hours_own()) : ""},
      {"own sizes need", OwnSizesText(*plan, checked->study.spec)},
      {"GPU-hours at most", plan->gpu_hours() > 0 ? Short(plan->gpu_hours()) : ""},
      {"notify", NotifyText(checked->file)}};
  for (const std::string& why : plan->unusable()) facts.emplace_back("left out", why);
  answer.sections.push_back(Facts(std::move(facts)));
  answer.sections.back().title = "Total";
  if (options.scripts || session.options().output == OutputFormat::kWide) {
    std::map<std::string, bool> shown;
    for (const auto& allocation : plan->allocations()) {
      if (allocation.script().empty() || !shown.try_emplace(allocation.script(), true).second) continue;
      Section script;
      script.title = "Script";
      script.columns = {{"line"}};
      script.header = false;
      script.rows = [&allocation](const RowSink& sink) {
        for (const absl::string_view line : absl::StrSplit(allocation.script(), '\n'))
          sink({std::string(line)});
      };
      answer.sections.push_back(std::move(script));
    }
  }
  if (const absl::Status status = session.Print(answer); !status.ok()) return status;
  return ExitCode::kOk;
}

}  // namespace

void AddStudyPlan(CLI::App& study, Action& chosen) {
  auto options = std::make_shared<StudyPlanOptions>();
  CLI::App* command =
      study.add_subcommand("plan", "Show the cells, allocations and cost of a study without submitting");
  command->add_option("FILE", options->file, "The study file; - reads standard input")->required();
  command
      ->add_option("--set", options->set,
                   "Replaces a value of the file, for example --set matrix.ranks=[1,2]; may be repeated")
      ->allow_extra_args(false);
  command->add_flag("--scripts", options->scripts, "Also show the batch scripts (as does -o wide)");
  command->callback([options, &chosen] {
    chosen = [options](Session& session) { return ExecuteStudyPlan(*options, session); };
  });
}

}  // namespace scalelab::client
