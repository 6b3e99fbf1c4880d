#include "server/core/submission.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "catalog/datasets.h"
#include "catalog/device.h"
#include "proto/status.h"
#include "server/cells/cells.h"
#include "server/core/convert.h"
#include "server/core/job_request.h"
#include "study/cell_checks.h"
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
std::optional<FieldViolation> CheckEngine(const v1::StudySpec& spec, const v1::RunSpec& run,
                                          const FrameworkStates& engines) {
  const std::string& engine = run.engine();
  const auto state = engines.find(EngineOn(engine, UsesGpus(run.device(), run.gpus_per_rank())));
  if (state == engines.end() || state->second.usable()) return std::nullopt;
  return FieldViolation{FieldOf(spec, "engine", Text(engine)),
                        absl::StrCat("engine ", engine, " cannot run here: ", state->second.reason(),
                                     "; try ", state->second.fix())};
}

// Checks whether the capacity is sufficient for the cell. Until Slurm has responded, the capacity is 0, and
// every cell fits.
std::optional<FieldViolation> CheckFits(const v1::StudySpec& spec, const v1::RunSpec& run,
                                        const Scheduler& scheduler, const Capacity& capacity) {
  if (capacity.slots > 0 && capacity.gpus == 0 && run.backend() == "nccl") {
    return FieldViolation{FieldOf(spec, "backend", Text("nccl")),
                          absl::StrCat("backend nccl needs GPUs, and the ", scheduler.name(),
                                       " scheduler has none; use mpi or gloo with gpus_per_rank: 0")};
  }
  if (run.launcher() == "srun" && RunsOwnProgram(run.engine()) && scheduler.name() == "local") {
    return FieldViolation{FieldOf(spec, "launcher", Text("srun")),
                          "launcher srun needs Slurm, and the scheduler is local; use mpirun or plain"};
  }
  const int cpus = std::max(1, run.cpus_per_rank());
  if (capacity.slots > 0 && run.ranks() * cpus > capacity.slots) {
    return FieldViolation{FieldOf(spec, "ranks", Number(run.ranks())),
                          absl::StrCat("ranks: ", run.ranks(), " needs ", run.ranks() * cpus, " slots, the ",
                                       scheduler.name(), " scheduler has ", capacity.slots,
                                       scheduler.name() == "local"
                                           ? "; use fewer ranks, or start scalelabd with more (--local-slots)"
                                           : "; use fewer ranks")};
  }
  if (capacity.slots > 0 && run.ranks() * run.gpus_per_rank() > capacity.gpus) {
    return FieldViolation{"resources.gpus_per_rank",
                          absl::StrCat("ranks: ", run.ranks(), " needs ", run.ranks() * run.gpus_per_rank(),
                                       " GPUs, the ", scheduler.name(), " scheduler has ", capacity.gpus,
                                       "; set gpus_per_rank: 0 to train on the CPU")};
  }
  return std::nullopt;
}

// Returns the data sets of the runs, with their directories.
Datasets DatasetsOf(const CellList& cells) {
  Datasets datasets;
  for (size_t i = 0; i < cells.size(); ++i) {
    const std::string dataset = cells.Text(i, v1::RunSpec::kDatasetFieldNumber);
    // A custom program may use any name for its data sets.
    if (dataset == "synthetic" || dataset == "synthetic-tokens" || dataset.empty() ||
        RunsOwnProgram(cells.Text(i, v1::RunSpec::kEngineFieldNumber)))
      continue;
    datasets.emplace(dataset, cells.Text(i, v1::RunSpec::kDataDirFieldNumber));
  }
  return datasets;
}

// The number of runs that one allocation of a group is expected to execute.
struct PlannedAllocation {
  size_t shape;  // index into ExpandedStudy.group.shapes
  int runs = 0;
};

// Distributes the blocks of a group over its allocations in the order that the coordinator uses.
std::vector<PlannedAllocation> PlanGroup(const ExpandedStudy& study) {
  const std::vector<AllocationShape>& shapes = study.group.shapes;
  std::vector<int> runs_in_block(shapes.size());
  for (size_t i = 0; i < study.cells.size(); ++i) {
    const int ranks = study.cells.Int(i, v1::RunSpec::kRanksFieldNumber);
    ++runs_in_block[ShapeWithNodes(shapes, NodesFor(ranks, shapes[0]))];
  }
  const auto most = static_cast<size_t>(ConcurrentAllocations(study.spec));
  std::vector<PlannedAllocation> planned;
  std::vector<std::vector<size_t>> of_shape(shapes.size());
  for (int block = 0; block < study.spec.repeats(); ++block) {
    for (size_t shape = 0; shape < shapes.size(); ++shape) {
      if (planned.size() < most) {
        of_shape[shape].push_back(planned.size());
        planned.push_back({shape});
      }
      const std::vector<size_t>& mine = of_shape[shape];
      planned[mine[static_cast<size_t>(block) % mine.size()]].runs += runs_in_block[shape];
    }
  }
  return planned;
}

// Calls `take` with the shape of each allocation that the study needs and the number of its runs.
template <class Take>
void ForEachAllocation(const ExpandedStudy& study, const Take& take) {
  if (study.spec.allocation() == v1::StudySpec::PER_RUN) {
    for (const PlannedRun& run : study.runs)
      take(ShapeOf(study.cells.NeedsOf(run.cell), study.spec.resources()), 1);
  } else {
    for (const PlannedAllocation& planned : PlanGroup(study))
      take(study.group.shapes[planned.shape], planned.runs);
  }
}

// Returns all values of a key in `fixed`, `matrix` and `zip`.
std::vector<google::protobuf::Value> ValuesOf(const v1::StudySpec& spec, const char* key) {
  std::vector<google::protobuf::Value> values;
  const auto add = [&](const v1::Axis& axis) {
    if (axis.key() == key) values.insert(values.end(), axis.values().begin(), axis.values().end());
  };
  if (const auto fixed = spec.fixed().fields().find(key); fixed != spec.fixed().fields().end())
    values.push_back(fixed->second);
  for (const v1::Axis& axis : spec.matrix()) add(axis);
  for (const v1::ZipGroup& group : spec.zip()) {
    for (const v1::Axis& axis : group.axes()) add(axis);
  }
  return values;
}

double PlannedGpuHours(const ExpandedStudy& study) {
  double hours = 0;
  ForEachAllocation(study, [&](const AllocationShape& shape, int) {
    const int gpus_per_node = shape.ranks_per_node * shape.gpus_per_rank;
    hours += static_cast<double>(shape.nodes) * gpus_per_node *
             static_cast<double>(study.spec.resources().time_seconds()) / 3600;
  });
  return hours;
}

}  // namespace

std::vector<std::string> FrameworkEngines(const v1::StudySpec& spec) {
  std::set<std::string> engines;
  bool gpus = false, cpus = true;  // whether runs may compute on GPUs, and on CPUs
  for (const auto& value : ValuesOf(spec, "engine")) {
    const Engine* engine = FindEngine(value.string_value());
    if (engine != nullptr && engine->program == Engine::Program::kAdapter)
      engines.insert(value.string_value());
  }
  if (const auto counts = ValuesOf(spec, "gpus_per_rank"); !counts.empty()) {
    const auto is_count = [](const google::protobuf::Value& value) { return value.number_value() > 0; };
    gpus = std::ranges::any_of(counts, is_count);
    cpus = !std::ranges::all_of(counts, is_count);
  }
  for (const auto& value : ValuesOf(spec, "device")) {
    gpus |= value.string_value() == "cuda";
    cpus |= value.string_value() == "cpu";
  }
  std::vector<std::string> names;
  for (const std::string& engine : engines) {
    if (cpus) names.push_back(EngineOn(engine, false));
    if (gpus) names.push_back(EngineOn(engine, true));
  }
  return names;
}

absl::StatusOr<ExpandedStudy> CheckStudy(const v1::StudySpec& spec, const Scheduler& scheduler,
                                         const FrameworkStates& engines,
                                         const std::function<bool()>& stopped) {
  const Capacity capacity = scheduler.capacity();
  const CellCheck runs_here = [&](const v1::RunSpec& run) {
    std::optional<FieldViolation> why = CheckEngine(spec, run, engines);
    return why ? why : CheckFits(spec, run, scheduler, capacity);
  };
  absl::StatusOr<ExpandedStudy> study = ExpandStudy(spec, runs_here, stopped);
  if (!study.ok()) return study.status();
  const double hours = PlannedGpuHours(*study), cap = study->spec.limits().gpu_hours();
  if (cap > 0 && hours > cap) {
    return InvalidFields(
        {{"limits.gpu_hours",
          absl::StrCat("the plan may use ", hours, " GPU-hours, the limit is ", cap,
                       "; shorten resources.time",
                       ConcurrentAllocations(study->spec) > 1 ? ", lower limits.concurrent_allocations" : "",
                       " or raise the limit")}});
  }
  return study;
}

Datasets DatasetsToCheck(const ExpandedStudy& study, const Scheduler& scheduler) {
  return scheduler.name() == "local" ? DatasetsOf(study.cells) : Datasets();
}

absl::Status CheckDatasets(const Datasets& datasets) {
  std::vector<FieldViolation> violations;
  for (const auto& [name, dir] : datasets) {
    if (auto s = CheckDataset(name, dir); !s.ok())
      violations.push_back({"fixed.data_dir", std::string(s.message())});
  }
  return violations.empty() ? absl::OkStatus() : InvalidFields(std::move(violations));
}

v1::PlanStudyResponse PlanOf(const ExpandedStudy& study, const Scheduler& scheduler) {
  v1::PlanStudyResponse plan;
  const size_t grid = study.cells.size() - study.baselines;
  for (size_t i = 0; i < grid; ++i) {
    const v1::RunSpec run = study.cells.SpecWithoutCommand(i);
    auto* planned = plan.add_cells();
    *planned->mutable_key() = study.cells.Key(i);
    planned->set_ranks(run.ranks());
    planned->set_global_batch(run.global_batch());
    planned->set_batch_per_rank(run.batch_per_rank());
    planned->set_learning_rate(run.learning_rate());
    planned->set_steps(KnownSteps(run));
  }
  plan.set_baseline_runs(study.baselines * study.spec.repeats());
  plan.set_runs(static_cast<int>(study.runs.size()) - plan.baseline_runs());
  plan.set_excluded(static_cast<int>(study.excluded.size()));
  for (const std::string& why : study.unusable) plan.add_unusable(why);
  plan.set_gpu_hours(PlannedGpuHours(study));
  if (study.spec.allocation() != v1::StudySpec::PER_RUN) {
    plan.set_node_hours_largest(study.group.largest_node_hours);
    plan.set_node_hours_own(study.group.own_node_hours);
    plan.set_own_sizes(study.group.sizes);
  }
  std::set<std::tuple<int, int, int, int>> shown;
  ForEachAllocation(study, [&](const AllocationShape& shape, int runs) {
    auto* allocation = plan.add_allocations();
    allocation->set_nodes(shape.nodes);
    allocation->set_ranks_per_node(shape.ranks_per_node);
    allocation->set_cpus_per_node(shape.ranks_per_node * shape.cpus_per_rank);
    allocation->set_gpus_per_node(shape.ranks_per_node * shape.gpus_per_rank);
    allocation->set_time_seconds(study.spec.resources().time_seconds());
    allocation->set_runs(runs);
    if (!shown.emplace(shape.nodes, shape.ranks_per_node, shape.cpus_per_rank, shape.gpus_per_rank).second)
      return;
    JobRequest request = RequestFor(study.spec, shape);
    request.token = "00000000-0000-0000-0000-000000000000";
    allocation->set_script(scheduler.Script(request));
  });
  return plan;
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
  study.row.is_private = spec.visibility() == v1::StudySpec::PRIVATE;
  study.shapes = expanded.group.shapes;
  made.cell_values = ToRows(expanded.cells.values(), 0);
  made.cells.reserve(expanded.cells.size() + expanded.excluded.size());
  const auto add = [&](const CellList& cells, bool excluded) {
    for (size_t i = 0; i < cells.size(); ++i) {
      db::CellRow row = ToRow(cells, i);
      row.position = static_cast<int>(made.cells.size());
      row.excluded = excluded;
      made.cells.push_back(std::move(row));
    }
  };
  add(expanded.cells, false);
  add(expanded.excluded, true);
  study.cells = std::move(expanded.cells);
  study.longest.assign(study.cells.size(), 0);
  study.runs.resize(expanded.runs.size());
  study.cell_of.reserve(expanded.runs.size());
  for (size_t p = 0; p < expanded.runs.size(); ++p) {
    study.runs[p].repeat = expanded.runs[p].repeat;
    study.cell_of.push_back(expanded.runs[p].cell);
  }
  study.spec = std::move(expanded.spec);
  ForgetGrid(study.spec);
  return made;
}

}  // namespace scalelab::server
