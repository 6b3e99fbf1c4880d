#include "study/rules.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "catalog/engines.h"
#include "study/cell_checks.h"
#include "study/checks.h"
#include "study/communication.h"
#include "study/grid.h"
#include "study/values.h"

namespace scalelab {
namespace {

using google::protobuf::Value;
using v1::LearningRate;
using v1::RunSpec;
using v1::Scaling;
using v1::StudySpec;

// Returns the values that all cells start with. Until Derive, the batches and the learning rate hold the
// inputs of their derivation.
RunSpec BaseSpec(const StudySpec& spec, const Grid& grid) {
  RunSpec base;
  SetDefaults(&base);
  base.set_global_batch(spec.scaling().global_batch());
  base.set_batch_per_rank(spec.scaling().batch_per_rank());
  base.set_learning_rate(spec.lr().base());
  base.set_warmup_epochs(spec.lr().warmup_epochs());
  base.set_seed(spec.seed());
  base.set_warmup_steps(spec.measure().warmup_steps());
  base.set_evaluate(spec.measure().evaluate());
  base.set_target_accuracy(spec.measure().target_accuracy());
  base.set_cpus_per_rank(spec.resources().cpus_per_rank());
  base.set_gpus_per_rank(spec.resources().gpus_per_rank());
  for (const auto& [key, value] : grid.fixed) SetField(*key, *value, &base);
  return base;
}

// Default image size of data set imagefolder. Most networks for ImageNet expect it.
constexpr int kFolderImage = 224;

// Makes cells, with the fields that are derived from a cell's other values.
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
    if (!dataset_set_ && RunsOwnProgram(run->engine())) run->clear_dataset();
    const bool folder = run->dataset() == "imagefolder";
    if (!augment_set_) run->set_augment(folder || run->dataset() == "cifar10");
    if (folder && run->image_size() == 0) run->set_image_size(kFolderImage);
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

 private:
  const StudySpec& spec_;
  const Grid& grid_;
  const RunSpec base_;
  const bool dataset_set_, augment_set_, warmup_set_;
};

// Products saturate at this value, so that counting runs cannot overflow 64 bits.
constexpr int64_t kVeryMany = 1'000'000'000'000'000'000;

// Number of cells between two checks whether the caller still waits.
constexpr int64_t kCellsPerCheck = 256;

// Limit of comparisons of cells with entries of "exclude", about two seconds.
constexpr int64_t kMaxComparisons = 20'000'000;

int64_t Times(int64_t a, int64_t b) { return b != 0 && a > kVeryMany / b ? kVeryMany : a * b; }

std::string Count(int64_t n) {
  return n >= kVeryMany ? absl::StrCat("more than ", WithCommas(n)) : WithCommas(n);
}

// Returns OK, or an error that suggests what to reduce.
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
                   ", or split it into several studies");
  return WithViolations(MakeError(absl::StatusCode::kResourceExhausted, "STUDY_TOO_LARGE", sentence),
                        {{field, sentence}});
}

// splitmix64 (Steele, Lea and Flood, OOPSLA 2014). Implemented here because the distributions of the standard
// library differ between implementations, and the order of runs must be the same everywhere.
class SplitMix {
 public:
  explicit SplitMix(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }
  // Returns a uniform number below n, by rejection sampling.
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

// Returns whether the communication of this cell is measured.
bool IsMeasured(const RunSpec& run) { return run.ranks() > 1 && OverlapsCommunication(run.engine()); }

// Returns why "measure: {communication: true}" would measure nothing. Returns nothing if it measures
// something, or if another violation already reports the problem.
std::optional<std::string> NothingToMeasure(const std::vector<Cell>& cells) {
  bool distributed = false;
  for (const Cell& cell : cells) {
    if (cell.spec.ranks() < 2) continue;
    distributed = true;
    if (!IsBaselineEngine(cell.spec.engine())) return std::nullopt;
  }
  if (!distributed) {
    return "there is no communication to measure on 1 rank; add ranks of 2 or more, or remove communication";
  }
  return "no engine of the study overlaps communication with backward; add native/ddp or native/horovod, or "
         "remove communication";
}

// Appends the baselines of the cells: each baseline once, and none that is itself a cell of the study.
void AddBaselines(ExpandedStudy* study) {
  std::unordered_set<std::string> there;
  for (const Cell& cell : study->cells) there.insert(ComparisonKey(cell.spec, cell.spec.engine()));
  std::vector<Cell> baselines;
  for (const Cell& cell : study->cells) {
    if (!IsMeasured(cell.spec)) continue;
    for (absl::string_view engine : {UnsynchronisedEngine().name, SerialEngine().name}) {
      if (!there.insert(ComparisonKey(cell.spec, engine)).second) continue;
      Cell& baseline = baselines.emplace_back();
      for (const auto& [axis, value] : cell.key.fields()) {
        if (EngineReads(engine, axis)) (*baseline.key.mutable_fields())[axis] = value;
      }
      (*baseline.key.mutable_fields())["engine"].set_string_value(std::string(engine));
      baseline.spec = cell.spec;
      baseline.spec.set_engine(std::string(engine));
      baseline.spec.set_communication_baseline(true);
    }
  }
  study->baselines = static_cast<int>(baselines.size());
  std::move(baselines.begin(), baselines.end(), std::back_inserter(study->cells));
}

absl::Status CheckSizeWithBaselines(const ExpandedStudy& study) {
  const int64_t repeats = study.spec.repeats();
  const int64_t runs = static_cast<int64_t>(study.cells.size()) * repeats;
  if (runs <= kMaxRunsPerStudy) return absl::OkStatus();
  const std::string sentence =
      absl::StrCat("the study has ", WithCommas(runs), " runs, ", WithCommas(study.baselines * repeats),
                   " of them to measure communication; at most ", WithCommas(kMaxRunsPerStudy),
                   " are allowed: split it into several studies, or remove communication");
  return WithViolations(MakeError(absl::StatusCode::kResourceExhausted, "STUDY_TOO_LARGE", sentence),
                        {{"measure.communication", sentence}});
}

// Returns for example "engine 'native/ddp' and ranks 4".
std::string Describe(const google::protobuf::Struct& values) {
  std::vector<std::string> parts;
  for (const auto& [name, value] : values.fields()) parts.push_back(absl::StrCat(name, " ", Show(value)));
  std::sort(parts.begin(), parts.end());
  return absl::StrJoin(parts, " and ");
}

// Returns RESOURCE_EXHAUSTED if matching the cells with "exclude" takes too long.
absl::Status CheckExcludeCost(const StudySpec& spec, const Grid& grid) {
  int64_t cells = 1;
  for (const GridFactor& factor : grid.factors) cells = Times(cells, factor.length);
  if (ExcludeIndex::Cost(spec, grid, cells) <= kMaxComparisons) return absl::OkStatus();
  const std::string sentence = absl::StrCat(
      "matching ", WithCommas(cells), " cells with the ", spec.exclude_size(),
      " entries of exclude takes too long; use fewer entries, and keys that are axes with few values");
  return WithViolations(MakeError(absl::StatusCode::kResourceExhausted, "STUDY_TOO_LARGE", sentence),
                        {{"exclude", sentence}});
}

}  // namespace

absl::StatusOr<ExpandedStudy> ExpandStudy(const StudySpec& raw, const CellCheck& runs_here,
                                          const std::function<bool()>& stopped) {
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

  if (absl::Status cost = CheckExcludeCost(raw, grid); !cost.ok()) return cost;
  ExcludeIndex exclude(raw, grid);
  CellMatcher baseline(raw.baseline(), grid);
  bool has_baseline = raw.baseline().fields().empty();

  CellMaker maker(raw, spec, grid);
  CellChecker checker(raw, spec, grid, runs_here, &violations);
  ShapeOfCells shape;
  std::vector<int> index(grid.factors.size());
  int64_t cells = 1;
  for (const GridFactor& factor : grid.factors) cells *= factor.length;
  study.cells.reserve(cells);
  for (int64_t n = 0; n < cells; ++n) {
    if (n % kCellsPerCheck == 0 && stopped && stopped())
      return absl::CancelledError("the expansion of the study was stopped");
    Cell cell = maker.Make(index);
    if (exclude.Matches(index, cell.spec) || !checker.Check(cell, index)) {
      study.excluded.push_back(std::move(cell));
    } else {
      has_baseline = has_baseline || baseline.Matches(index, cell.spec);
      shape.Add(cell.spec);
      study.cells.push_back(std::move(cell));
    }
    for (size_t f = index.size(); f-- > 0;) {  // the last factor varies fastest
      if (++index[f] < grid.factors[f].length) break;
      index[f] = 0;
    }
  }

  study.unusable = checker.TakeUnusable();
  if (values_sound) {
    for (const int i : exclude.Unused()) {
      violations.Add(absl::StrCat("exclude[", i, "]"),
                     absl::StrCat("the entry excludes nothing: no cell has ", Describe(raw.exclude(i))));
    }
    if (study.cells.empty() && !study.unusable.empty()) {
      violations.Add("on_unusable",
                     absl::StrCat("nothing is left to run: ", study.unusable.front(),
                                  study.unusable.size() == 1
                                      ? ""
                                      : absl::StrCat(" (and ", study.unusable.size() - 1, " more reasons)")));
    } else if (study.cells.empty()) {
      violations.Add("exclude", absl::StrCat("every cell is excluded (", WithCommas(cells), " of ",
                                             WithCommas(cells), "); nothing is left to run"));
    } else if (!has_baseline) {
      violations.Add("baseline", absl::StrCat("no cell has ", Describe(raw.baseline()),
                                              "; use values of the study, or remove baseline"));
    } else if (spec.measure().communication()) {
      if (auto nothing = NothingToMeasure(study.cells))
        violations.Add("measure.communication", *std::move(nothing));
    }
  }
  if (!violations.empty()) return InvalidFields(violations.Take());

  if (spec.measure().communication()) AddBaselines(&study);
  if (absl::Status size = CheckSizeWithBaselines(study); !size.ok()) return size;
  study.runs = Order(spec, static_cast<int>(study.cells.size()));
  study.shape = shape.Get(spec.resources());
  return study;
}

StudySpec WithDefaults(StudySpec spec) {
  FillDefaults(&spec);
  return spec;
}

void ShapeOfCells::Add(const RunSpec& spec) {
  ranks_ = std::max(ranks_, spec.ranks());
  cpus_per_rank_ = std::max(cpus_per_rank_, spec.cpus_per_rank());
  gpus_per_rank_ = std::max(gpus_per_rank_, spec.gpus_per_rank());
}

AllocationShape ShapeOfCells::Get(const v1::Resources& resources) const {
  AllocationShape shape;
  const int on_node = resources.ranks_per_node();
  shape.ranks_per_node = on_node > 0 ? std::min(on_node, ranks_) : ranks_;
  shape.nodes = (ranks_ - 1) / shape.ranks_per_node + 1;
  shape.cpus_per_rank = cpus_per_rank_;
  shape.gpus_per_rank = gpus_per_rank_;
  return shape;
}

AllocationShape ShapeOf(const RunSpec& spec, const v1::Resources& resources) {
  ShapeOfCells shape;
  shape.Add(spec);
  return shape.Get(resources);
}

}  // namespace scalelab
