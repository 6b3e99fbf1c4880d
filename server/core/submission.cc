#include "server/core/submission.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "catalog/datasets.h"
#include "proto/status.h"
#include "server/core/convert.h"
#include "server/core/job_request.h"
#include "study/values.h"

namespace scalelab::server {
namespace {

google::protobuf::Value Number(double number) {
  google::protobuf::Value value;
  value.set_number_value(number);
  return value;
}

google::protobuf::Value Text(const std::string& text) {
  google::protobuf::Value value;
  value.set_string_value(text);
  return value;
}

// Returns the field that sets `key` to `value`, for error messages: an axis entry, or "fixed".
std::string FieldOf(const v1::StudySpec& spec, const std::string& key, const google::protobuf::Value& value) {
  for (const v1::Axis& axis : spec.matrix()) {
    if (axis.key() != key) continue;
    for (int i = 0; i < axis.values_size(); ++i) {
      if (SameValue(axis.values(i), value)) return absl::StrCat("matrix.", key, "[", i, "]");
    }
  }
  for (int z = 0; z < spec.zip_size(); ++z) {
    for (const v1::Axis& axis : spec.zip(z).axes()) {
      if (axis.key() == key) return absl::StrCat("zip[", z, "].", key);
    }
  }
  return absl::StrCat("fixed.", key);
}

// Checks that the framework of the cell is usable.
std::optional<FieldViolation> CheckEngine(const v1::StudySpec& spec, const Cell& cell,
                                          const FrameworkStates& engines) {
  const std::string& engine = cell.spec.engine();
  const auto state = engines.find(engine);
  if (state == engines.end() || state->second.usable()) return std::nullopt;
  return FieldViolation{FieldOf(spec, "engine", Text(engine)),
                        absl::StrCat("engine ", engine, " cannot run here: ", state->second.reason(),
                                     "; try ", state->second.fix())};
}

// Checks whether the cell fits into the capacity. The capacity is 0 until Slurm has answered; until then
// every cell fits.
std::optional<FieldViolation> CheckFits(const v1::StudySpec& spec, const Cell& cell,
                                        const Scheduler& scheduler, const Capacity& capacity) {
  if (capacity.slots > 0 && capacity.gpus == 0 && cell.spec.backend() == "nccl") {
    return FieldViolation{FieldOf(spec, "backend", Text("nccl")),
                          absl::StrCat("backend nccl needs GPUs, and the ", scheduler.name(),
                                       " scheduler has none; use mpi or gloo with gpus_per_rank: 0")};
  }
  const int cpus = std::max(1, cell.spec.cpus_per_rank());
  if (capacity.slots > 0 && cell.spec.ranks() * cpus > capacity.slots) {
    return FieldViolation{FieldOf(spec, "ranks", Number(cell.spec.ranks())),
                          absl::StrCat("ranks: ", cell.spec.ranks(), " needs ", cell.spec.ranks() * cpus,
                                       " slots, the ", scheduler.name(), " scheduler has ", capacity.slots,
                                       scheduler.name() == "local"
                                           ? "; use fewer ranks, or start scalelabd with more (--local-slots)"
                                           : "; use fewer ranks")};
  }
  if (capacity.slots > 0 && cell.spec.ranks() * cell.spec.gpus_per_rank() > capacity.gpus) {
    return FieldViolation{
        "resources.gpus_per_rank",
        absl::StrCat("ranks: ", cell.spec.ranks(), " needs ", cell.spec.ranks() * cell.spec.gpus_per_rank(),
                     " GPUs, the ", scheduler.name(), " scheduler has ", capacity.gpus,
                     "; set gpus_per_rank: 0 to train on the CPU")};
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::string> FrameworkEngines(const v1::StudySpec& spec) {
  std::set<std::string> names;
  const auto add = [&](const google::protobuf::Value& value) {
    const Engine* engine = FindEngine(value.string_value());
    if (engine != nullptr && engine->program == Engine::Program::kAdapter) names.insert(value.string_value());
  };
  const auto add_axis = [&](const v1::Axis& axis) {
    if (axis.key() != "engine") return;
    for (const auto& value : axis.values()) add(value);
  };
  if (const auto fixed = spec.fixed().fields().find("engine"); fixed != spec.fixed().fields().end())
    add(fixed->second);
  for (const v1::Axis& axis : spec.matrix()) add_axis(axis);
  for (const v1::ZipGroup& group : spec.zip()) {
    for (const v1::Axis& axis : group.axes()) add_axis(axis);
  }
  return {names.begin(), names.end()};
}

absl::StatusOr<StudyNeeds> CheckStudy(const v1::StudySpec& spec, const Scheduler& scheduler,
                                      const FrameworkStates& engines, const std::function<bool()>& stopped) {
  const Capacity capacity = scheduler.capacity();
  const CellCheck runs_here = [&](const Cell& cell) {
    std::optional<FieldViolation> why = CheckEngine(spec, cell, engines);
    return why ? why : CheckFits(spec, cell, scheduler, capacity);
  };
  absl::StatusOr<ExpandedStudy> expanded = ExpandStudy(spec, runs_here, stopped);
  if (!expanded.ok()) return expanded.status();
  std::vector<FieldViolation> violations;
  std::set<std::pair<std::string, std::string>> datasets;
  for (const Cell& cell : expanded->cells) {
    // A custom program may give data sets any name.
    if (!RunsOwnProgram(cell.spec.engine()) && cell.spec.dataset() != "synthetic")
      datasets.emplace(cell.spec.dataset(), cell.spec.data_dir());
  }
  // Only with the local scheduler do ranks surely see the files of this machine.
  if (scheduler.name() == "local") {
    for (const auto& [name, dir] : datasets) {
      if (name.empty()) continue;
      if (auto s = CheckDataset(name, dir); !s.ok())
        violations.push_back({"fixed.data_dir", std::string(s.message())});
    }
  }
  if (!violations.empty()) return InvalidFields(std::move(violations));

  StudyNeeds needs;
  v1::PlanStudyResponse& plan = needs.plan;
  const size_t grid = expanded->cells.size() - expanded->baselines;
  for (size_t i = 0; i < grid; ++i) {
    const Cell& cell = expanded->cells[i];
    auto* planned = plan.add_cells();
    *planned->mutable_key() = cell.key;
    planned->set_ranks(cell.spec.ranks());
    planned->set_global_batch(cell.spec.global_batch());
    planned->set_batch_per_rank(cell.spec.batch_per_rank());
    planned->set_learning_rate(cell.spec.learning_rate());
  }
  plan.set_baseline_runs(expanded->baselines * expanded->spec.repeats());
  plan.set_runs(static_cast<int>(expanded->runs.size()) - plan.baseline_runs());
  plan.set_excluded(static_cast<int>(expanded->excluded.size()));
  for (std::string& why : expanded->unusable) plan.add_unusable(std::move(why));
  const auto add = [&](const AllocationShape& shape, int runs) {
    auto* allocation = plan.add_allocations();
    allocation->set_nodes(shape.nodes);
    allocation->set_ranks_per_node(shape.ranks_per_node);
    allocation->set_cpus_per_node(shape.ranks_per_node * shape.cpus_per_rank);
    allocation->set_gpus_per_node(shape.ranks_per_node * shape.gpus_per_rank);
    allocation->set_time_seconds(expanded->spec.resources().time_seconds());
    allocation->set_runs(runs);
    plan.set_gpu_hours(plan.gpu_hours() + static_cast<double>(shape.nodes) * allocation->gpus_per_node() *
                                              static_cast<double>(allocation->time_seconds()) / 3600);
  };
  if (expanded->spec.allocation() == v1::StudySpec::PER_RUN) {
    for (const PlannedRun& run : expanded->runs) {
      add(ShapeOf(expanded->cells[run.cell].spec, expanded->spec.resources()), 1);
    }
  } else {
    add(expanded->shape, static_cast<int>(expanded->runs.size()));
  }
  const double cap = expanded->spec.limits().gpu_hours();
  if (cap > 0 && plan.gpu_hours() > cap) {
    return InvalidFields(
        {{"limits.gpu_hours", absl::StrCat("the plan may use ", plan.gpu_hours(), " GPU-hours, the limit is ",
                                           cap, "; shorten resources.time or raise the limit")}});
  }
  needs.study = *std::move(expanded);
  return needs;
}

void AddScripts(const Scheduler& scheduler, StudyNeeds& needs) {
  std::set<std::pair<int, int>> shown;
  for (auto& allocation : *needs.plan.mutable_allocations()) {
    AllocationShape shape = needs.study.shape;
    shape.nodes = allocation.nodes();
    shape.ranks_per_node = allocation.ranks_per_node();
    if (!shown.emplace(shape.nodes, shape.ranks_per_node).second) continue;
    JobRequest request = RequestFor(needs.study.spec, shape);
    request.token = "00000000-0000-0000-0000-000000000000";
    allocation.set_script(scheduler.Script(request));
  }
}

NewStudy MakeNewStudy(const v1::StudySpec& spec, ExpandedStudy expanded, std::string owner,
                      std::string request_id) {
  NewStudy made;
  made.state = std::make_unique<LiveStudy>();
  LiveStudy& study = *made.state;
  study.row.name = spec.study();
  study.row.owner = std::move(owner);
  study.row.request_id = std::move(request_id);
  study.row.spec = ToJson(spec);
  study.row.priority = spec.priority();
  study.shape = expanded.shape;
  const auto add = [&](const Cell& cell, bool excluded) {
    db::CellRow row;
    row.position = static_cast<int>(made.cells.size());
    row.engine = cell.spec.engine();
    row.model = cell.spec.model();
    row.precision = cell.spec.precision();
    row.backend = cell.spec.backend();
    row.ranks = cell.spec.ranks();
    row.global_batch = cell.spec.global_batch();
    row.key = ToJson(cell.key);
    row.spec = ToFullJson(cell.spec);
    row.excluded = excluded;
    made.cells.push_back(std::move(row));
  };
  for (const Cell& cell : expanded.cells) add(cell, false);
  for (const Cell& cell : expanded.excluded) add(cell, true);
  for (Cell& cell : expanded.cells) study.cells.push_back({0, std::move(cell.spec), std::move(cell.key)});
  study.longest.assign(study.cells.size(), 0);
  study.runs.resize(expanded.runs.size());
  study.cell_of.reserve(expanded.runs.size());
  for (size_t p = 0; p < expanded.runs.size(); ++p) {
    study.runs[p].repeat = expanded.runs[p].repeat;
    study.cell_of.push_back(expanded.runs[p].cell);
  }
  study.spec = std::move(expanded.spec);
  return made;
}

}  // namespace scalelab::server
