#include "proto/study_rules.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/study_checks.h"
#include "proto/study_grid.h"
#include "proto/study_values.h"

namespace scalelab {
namespace {

using google::protobuf::Value;
using v1::LearningRate;
using v1::RunSpec;
using v1::Scaling;
using v1::StudySpec;

// What every cell starts from. Fields that a cell derives (batches, rate) hold their inputs until then.
RunSpec BaseSpec(const StudySpec& spec, const Grid& grid) {
  RunSpec base;
  base.set_engine("native/ddp");
  base.set_precision("fp32");
  base.set_backend("auto");
  base.set_device("auto");
  base.set_epochs(1);
  base.set_global_batch(spec.scaling().global_batch());
  base.set_batch_per_rank(spec.scaling().batch_per_rank());
  base.set_learning_rate(spec.lr().base());
  base.set_warmup_epochs(spec.lr().warmup_epochs());
  base.set_lr_schedule("constant");
  base.set_momentum(0.9);
  base.set_weight_decay(1e-4);
  base.set_decay_norm(true);
  base.set_batch_norm("train");
  base.set_seed(spec.seed());
  base.set_warmup_steps(spec.measure().warmup_steps());
  base.set_evaluate(spec.measure().evaluate());
  base.set_target_accuracy(spec.measure().target_accuracy());
  base.set_cpus_per_rank(spec.resources().cpus_per_rank());
  base.set_gpus_per_rank(spec.resources().gpus_per_rank());
  base.set_memory_format("auto");
  base.set_bucket_cap_mib(25);
  base.set_accumulation_steps(1);
  base.set_first_bucket_cap_mib(1);
  base.set_fusion_threshold_mib(128);
  base.set_cycle_time_ms(1);
  base.set_cache_capacity(1024);
  base.set_gradient_compression("none");
  base.set_stall_warning_s(60);
  for (const auto& [key, value] : grid.fixed) SetField(*key, *value, &base);
  return base;
}

// Derives what follows from a cell's own values.
class CellMaker {
 public:
  CellMaker(const StudySpec& raw, const StudySpec& spec, const Grid& grid)
      : spec_(spec),
        grid_(grid),
        base_(BaseSpec(spec, grid)),
        dataset_set_(grid.Sets("dataset")),
        augment_set_(grid.Sets("augment")),
        warmup_set_(raw.measure().has_warmup_steps()) {}

  Cell Make(const std::vector<int>& index) const {
    Cell cell;
    cell.spec = base_;
    for (size_t f = 0; f < grid_.factors.size(); ++f) {
      for (const GridAxis& axis : grid_.factors[f].axes) {
        const Value& value = axis.values->Get(index[f]);
        (*cell.key.mutable_fields())[axis.name] = value;
        if (axis.key != nullptr) SetField(*axis.key, value, &cell.spec);
      }
    }
    Derive(&cell.spec);
    return cell;
  }

 private:
  void Derive(RunSpec* run) const {
    if (!dataset_set_ && run->engine() != "custom") run->set_dataset("cifar10");
    if (!augment_set_) run->set_augment(run->dataset() == "cifar10");
    int64_t ranks = std::max(run->ranks(), 1);
    if (spec_.scaling().mode() == Scaling::WEAK) {
      int64_t global = run->batch_per_rank() * ranks;
      run->set_global_batch(std::min<int64_t>(global, std::numeric_limits<int32_t>::max()));
    } else {
      run->set_batch_per_rank(run->global_batch() / ranks);
    }
    double base = run->learning_rate();
    double reference = spec_.lr().reference_batch();
    double rate = base;
    if (spec_.lr().rule() == LearningRate::LINEAR) rate = base * run->global_batch() / reference;
    if (spec_.lr().rule() == LearningRate::SQRT) rate = base * std::sqrt(run->global_batch() / reference);
    run->set_learning_rate(rate);
    run->set_warmup_start_rate(run->warmup_epochs() > 0 ? std::min(base / 10, rate) : rate);
    int64_t steps = KnownSteps(*run);
    if (!warmup_set_ && steps > 0) run->set_warmup_steps(std::min<int64_t>(run->warmup_steps(), steps / 4));
  }

 public:
  // Steps that the run will not exceed as far as the specification tells; 0 when it does not.
  static int64_t KnownSteps(const RunSpec& run) {
    int64_t steps = run.max_steps();
    if (run.train_samples() > 0 && run.global_batch() > 0) {
      int64_t by_epochs = std::max<int64_t>(run.train_samples() / run.global_batch(), 1) * run.epochs();
      steps = steps > 0 ? std::min(steps, by_epochs) : by_epochs;
    }
    return steps;
  }

 private:
  const StudySpec& spec_;
  const Grid& grid_;
  const RunSpec base_;
  const bool dataset_set_, augment_set_, warmup_set_;
};

// Problems that only a whole cell can have. Each is told once, whatever the number of cells that have it.
class CellChecker {
 public:
  CellChecker(const StudySpec& raw, const StudySpec& spec, const Grid& grid, Violations* violations)
      : raw_(raw), spec_(spec), grid_(grid), violations_(violations) {}

  void Check(const RunSpec& run, const std::vector<int>& index) {
    if (run.ranks() < 1) return;  // already told
    CheckBatch(run, index);
    if (raw_.measure().has_warmup_steps() && CellMaker::KnownSteps(run) > 0 &&
        run.warmup_steps() >= CellMaker::KnownSteps(run)) {
      Add("measure.warmup_steps",
          absl::StrCat("warmup_steps ", run.warmup_steps(), " leave nothing to measure of ",
                       CellMaker::KnownSteps(run), " steps"));
    }
    if (run.engine() == "custom") {
      if (run.command().empty() && !grid_.unknown_keys) {
        Add("fixed.command", "engine custom needs a command, for example command: [python3, train.py]");
      }
      return;
    }
    if (!grid_.unknown_keys) {
      if (run.model().empty()) {
        Add("fixed.model",
            absl::StrCat("engine ", run.engine(), " needs a model, for example model: resnet20"));
      }
      if (run.dataset() == "cifar10" && run.data_dir().empty()) {
        Add("fixed.data_dir", "dataset cifar10 needs data_dir, the directory of data_batch_1.bin");
      }
    }
    CheckDevice(run, index);
    CheckEngine(run, index);
  }

 private:
  void Add(std::string field, std::string description) {
    if (seen_.insert(field + "\n" + description).second)
      violations_->Add(std::move(field), std::move(description));
  }

  void CheckBatch(const RunSpec& run, const std::vector<int>& index) {
    int64_t ranks = run.ranks();
    if (spec_.scaling().mode() == Scaling::WEAK) {
      int64_t global = run.batch_per_rank() * ranks;
      if (global > std::numeric_limits<int32_t>::max()) {
        Add(grid_.Where("batch_per_rank", index, "scaling.batch_per_rank"),
            absl::StrCat("batch_per_rank ", run.batch_per_rank(), " x ", ranks,
                         " ranks is a global batch of ", WithCommas(global),
                         "; at most 2,147,483,647 is possible"));
      }
      return;
    }
    int64_t batch = run.global_batch();
    if (batch < 1 || batch % ranks == 0) return;
    int64_t below = batch / ranks * ranks;
    Add(grid_.Where("global_batch", index, "scaling.global_batch"),
        absl::StrCat("global_batch ", batch, " does not divide evenly over ", ranks,
                     " ranks; the nearest that ",
                     below > 0 ? absl::StrCat("do are ", below, " and ") : "does is ", below + ranks));
  }

  void CheckEngine(const RunSpec& run, const std::vector<int>& index) {
    if (run.engine() == "native/horovod" && run.batch_norm() == "sync" && run.ranks() > 1) {
      Add(grid_.Where("batch_norm", index, "fixed.batch_norm"),
          "engine native/horovod cannot run batch_norm sync; use batch_norm train, or native/ddp");
    }
    if (run.batch_per_rank() > 0 && run.accumulation_steps() > run.batch_per_rank()) {
      Add(grid_.Where("accumulation_steps", index, "fixed.accumulation_steps"),
          absl::StrCat("accumulation_steps ", run.accumulation_steps(), " must not exceed the ",
                       run.batch_per_rank(), " samples of a rank"));
    }
  }

  void CheckDevice(const RunSpec& run, const std::vector<int>& index) {
    bool cpu = run.device() == "cpu" || (run.device() == "auto" && run.gpus_per_rank() == 0);
    if (run.device() == "cuda" && run.gpus_per_rank() == 0) {
      Add(grid_.Where("device", index, "fixed.device"),
          "device cuda needs GPUs; set resources.gpus_per_rank, for example to 1");
    }
    if (run.backend() == "solo" && run.ranks() > 1) {
      Add(grid_.Where("backend", index, "fixed.backend"),
          absl::StrCat("backend solo is for one rank, not ", run.ranks(), "; use auto, mpi or gloo"));
    }
    if (cpu && run.backend() == "nccl") {
      Add(grid_.Where("backend", index, "fixed.backend"),
          "backend nccl needs GPUs; set resources.gpus_per_rank, or use mpi or gloo");
    }
    if (cpu && (run.precision() == "tf32" || run.precision() == "amp-fp16")) {
      Add(grid_.Where("precision", index, "fixed.precision"),
          absl::StrCat("precision ", run.precision(),
                       " needs GPUs; set resources.gpus_per_rank, or use fp32 or amp-bf16"));
    }
  }

  const StudySpec& raw_;
  const StudySpec& spec_;
  const Grid& grid_;
  Violations* violations_;
  std::unordered_set<std::string> seen_;
};

// Runs are few enough to count in 64 bits after saturation at this.
constexpr int64_t kVeryMany = 1'000'000'000'000'000'000;

int64_t Times(int64_t a, int64_t b) { return b != 0 && a > kVeryMany / b ? kVeryMany : a * b; }

std::string Count(int64_t n) {
  return n >= kVeryMany ? absl::StrCat("more than ", WithCommas(n)) : WithCommas(n);
}

// OK, or what to reduce.
absl::Status CheckSize(const Grid& grid, int64_t repeats) {
  int64_t cells = 1;
  const GridFactor* longest = nullptr;
  for (const GridFactor& factor : grid.factors) {
    cells = Times(cells, factor.length);
    if (longest == nullptr || factor.length > longest->length) longest = &factor;
  }
  int64_t runs = Times(cells, repeats);
  if (runs <= kMaxRunsPerStudy) return absl::OkStatus();
  bool by_repeats = longest == nullptr || longest->length <= repeats;
  std::string field = by_repeats ? "repeats" : longest->axes.front().path;
  std::string reduce = by_repeats ? absl::StrCat("repeats (", WithCommas(repeats), ")")
                                  : absl::StrCat(field, " (", WithCommas(longest->length), " values)");
  std::string sentence =
      absl::StrCat("the study has ", Count(runs), " runs (", Count(cells), " cells x ", WithCommas(repeats),
                   " repeats); at most ", WithCommas(kMaxRunsPerStudy), " are allowed: reduce ", reduce,
                   ", or make several studies of it");
  return WithViolations(MakeError(absl::StatusCode::kResourceExhausted, "STUDY_TOO_LARGE", sentence),
                        {{field, sentence}});
}

// splitmix64 (Steele, Lea and Flood, OOPSLA 2014): written out because the standard's distributions differ
// between libraries, and an order must be the same everywhere.
class SplitMix {
 public:
  explicit SplitMix(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }
  // Uniform below n, by rejection.
  uint64_t Below(uint64_t n) {
    uint64_t reject = (0 - n) % n;  // 2^64 mod n
    uint64_t x;
    do x = Next();
    while (x < reject);
    return x % n;
  }

 private:
  uint64_t state_;
};

std::vector<PlannedRun> Order(const StudySpec& spec, int cells) {
  std::vector<PlannedRun> runs;
  runs.reserve(static_cast<size_t>(cells) * spec.repeats());
  for (int repeat = 0; repeat < spec.repeats(); ++repeat) {
    size_t first = runs.size();
    for (int cell = 0; cell < cells; ++cell) runs.push_back({cell, repeat});
    if (spec.order() != StudySpec::RANDOMIZED) continue;
    SplitMix random(SplitMix(spec.seed()).Next() + static_cast<uint64_t>(repeat));
    for (int i = cells - 1; i > 0; --i) std::swap(runs[first + i], runs[first + random.Below(i + 1)]);
  }
  return runs;
}

AllocationShape Shape(int ranks, int cpus_per_rank, int gpus_per_rank, const v1::Resources& resources) {
  AllocationShape shape;
  ranks = std::max(ranks, 1);
  shape.ranks_per_node = resources.ranks_per_node() > 0 ? std::min(resources.ranks_per_node(), ranks) : ranks;
  shape.nodes = (ranks - 1) / shape.ranks_per_node + 1;
  shape.cpus_per_rank = std::max(cpus_per_rank, 1);
  shape.gpus_per_rank = gpus_per_rank;
  return shape;
}

// "engine 'native/ddp' and ranks 4".
std::string Describe(const google::protobuf::Struct& values) {
  std::vector<std::string> parts;
  for (const auto& [name, value] : values.fields()) parts.push_back(absl::StrCat(name, " ", Show(value)));
  std::sort(parts.begin(), parts.end());
  return absl::StrJoin(parts, " and ");
}

}  // namespace

absl::StatusOr<ExpandedStudy> ExpandStudy(const StudySpec& raw) {
  Violations violations;
  CheckSections(raw, &violations);
  ExpandedStudy study;
  study.spec = raw;
  FillDefaults(&study.spec);
  const StudySpec& spec = study.spec;

  size_t before_grid = violations.size();
  Grid grid = ReadGrid(raw, &violations);
  bool values_sound = violations.size() == before_grid;
  if (!grid.sound) return InvalidFields(violations.Take());
  absl::Status size = CheckSize(grid, std::max(spec.repeats(), 1));
  if (!size.ok()) return violations.empty() ? size : InvalidFields(violations.Take());

  std::vector<CellMatcher> exclude;
  for (const auto& entry : raw.exclude()) exclude.emplace_back(entry, grid);
  std::vector<bool> excluded_any(exclude.size());
  CellMatcher baseline(raw.baseline(), grid);
  bool has_baseline = raw.baseline().fields().empty();

  CellMaker maker(raw, spec, grid);
  CellChecker checker(raw, spec, grid, &violations);
  int max_ranks = 1, max_cpus = 1, max_gpus = 0;
  std::vector<int> index(grid.factors.size());
  int64_t cells = 1;
  for (const GridFactor& factor : grid.factors) cells *= factor.length;
  study.cells.reserve(cells);
  for (int64_t n = 0; n < cells; ++n) {
    Cell cell = maker.Make(index);
    bool excluded = false;
    for (size_t i = 0; i < exclude.size(); ++i) {
      if (!exclude[i].Matches(index, cell.spec)) continue;
      excluded = true;
      excluded_any[i] = true;
    }
    if (excluded) {
      study.excluded.push_back(std::move(cell));
    } else {
      checker.Check(cell.spec, index);
      has_baseline = has_baseline || baseline.Matches(index, cell.spec);
      max_ranks = std::max(max_ranks, cell.spec.ranks());
      max_cpus = std::max(max_cpus, cell.spec.cpus_per_rank());
      max_gpus = std::max(max_gpus, cell.spec.gpus_per_rank());
      study.cells.push_back(std::move(cell));
    }
    for (size_t f = index.size(); f-- > 0;) {  // the last factor varies fastest
      if (++index[f] < grid.factors[f].length) break;
      index[f] = 0;
    }
  }

  if (values_sound) {
    for (size_t i = 0; i < exclude.size(); ++i) {
      if (excluded_any[i]) continue;
      violations.Add(absl::StrCat("exclude[", i, "]"),
                     absl::StrCat("excludes nothing: no cell has ", Describe(raw.exclude(i))));
    }
    if (study.cells.empty()) {
      violations.Add("exclude", absl::StrCat("every cell is excluded (", WithCommas(cells), " of ",
                                             WithCommas(cells), "); nothing is left to run"));
    } else if (!has_baseline) {
      violations.Add("baseline", absl::StrCat("no cell has ", Describe(raw.baseline()),
                                              "; name values that the study has, or leave baseline out"));
    }
  }
  if (!violations.empty()) return InvalidFields(violations.Take());

  study.runs = Order(spec, static_cast<int>(study.cells.size()));
  study.shape = Shape(max_ranks, max_cpus, max_gpus, spec.resources());
  return study;
}

AllocationShape ShapeOf(const RunSpec& spec, const v1::Resources& resources) {
  return Shape(spec.ranks(), spec.cpus_per_rank(), spec.gpus_per_rank(), resources);
}

}  // namespace scalelab
