#include "study/rules.h"

#include <algorithm>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "catalog/engines.h"
#include "study/cell_checks.h"
#include "study/cell_maker.h"
#include "study/checks.h"
#include "study/communication.h"
#include "study/grid.h"
#include "study/values.h"

namespace scalelab {
namespace {

using google::protobuf::Value;
using v1::RunSpec;
using v1::StudySpec;

// Products saturate at this value, so that counting runs cannot overflow 64 bits.
constexpr int64_t kVeryMany = 1'000'000'000'000'000'000;

// Number of cells between two checks whether the caller still waits.
constexpr int64_t kCellsPerCheck = 256;

// Limit of the bytes of the values of all axes in all cells.
constexpr double kMaxKeyBytes = 64 << 20;

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

// Returns RESOURCE_EXHAUSTED if the keys of all cells together are long: queries return the key of each cell.
absl::Status CheckKeys(const Grid& grid) {
  int64_t cells = 1;
  for (const GridFactor& factor : grid.factors) cells *= factor.length;
  double all = 0, longest = 0;
  std::string path;
  for (const GridFactor& factor : grid.factors) {
    for (const GridAxis& axis : factor.axes) {
      double bytes = 0;
      for (const Value& value : *axis.values) bytes += static_cast<double>(value.ByteSizeLong());
      bytes *= static_cast<double>(cells) / factor.length;
      all += bytes;
      if (bytes > longest) path = axis.path;
      longest = std::max(longest, bytes);
    }
  }
  if (all <= kMaxKeyBytes) return absl::OkStatus();
  const std::string sentence = absl::StrCat(
      "the values of ", path, " take ", WithCommas(static_cast<int64_t>(longest / (1 << 20))), " MiB in ",
      WithCommas(cells), " cells; at most 64 MiB are allowed: put long texts into files and use their names");
  return WithViolations(MakeError(absl::StatusCode::kResourceExhausted, "STUDY_TOO_LARGE", sentence),
                        {{path, sentence}});
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

// Shuffles the cells of each block if the order is RANDOMIZED. Two cells would by chance have the same order in all of
// three blocks in a quarter of studies, and a linear drift of the machine would then be a part of their ratio. With
// two cells, each second block therefore has the reverse order of the block before it.
std::vector<PlannedRun> Order(const StudySpec& spec, int cells) {
  std::vector<PlannedRun> runs;
  runs.reserve(static_cast<size_t>(cells) * spec.repeats());
  for (int repeat = 0; repeat < spec.repeats(); ++repeat) {
    size_t first = runs.size();
    for (int cell = 0; cell < cells; ++cell) runs.push_back({cell, repeat});
    if (spec.order() != StudySpec::RANDOMIZED) continue;
    if (cells == 2 && repeat % 2 == 1) {
      runs[first].cell = runs[first - 1].cell;
      runs[first + 1].cell = runs[first - 2].cell;
      continue;
    }
    SplitMix random(SplitMix(spec.seed()).Next() + static_cast<uint64_t>(repeat));
    for (int i = cells - 1; i > 0; --i) std::swap(runs[first + i], runs[first + random.Below(i + 1)]);
  }
  return runs;
}

// Returns whether the communication of this cell is measured.
bool IsMeasured(const RunSpec& run) { return run.ranks() > 1 && OverlapsCommunication(run.engine()); }

// Returns why "measure: {communication: true}" would measure nothing. Returns nothing if it measures
// something, or if another violation already reports the problem.
std::optional<std::string> NothingToMeasure(const CellList& cells) {
  bool distributed = false;
  for (size_t i = 0; i < cells.size(); ++i) {
    const RunSpec spec = cells.SpecWithoutCommand(i);
    if (spec.ranks() < 2) continue;
    distributed = true;
    if (!IsBaselineEngine(spec.engine())) return std::nullopt;
  }
  if (!distributed) {
    return "there is no communication to measure on 1 rank; add ranks of 2 or more, or remove communication";
  }
  return "no engine of the study overlaps communication with backward; add native/ddp or native/horovod, or "
         "remove communication";
}

// Appends the baselines of the cells: each baseline once, and none that is itself a cell of the study.
void AddBaselines(ExpandedStudy* study) {
  CellList& cells = study->cells;
  CellValues& values = cells.values();
  const size_t grid = cells.size();
  std::unordered_set<std::string> there;
  for (size_t i = 0; i < grid; ++i) {
    const RunSpec spec = cells.SpecWithoutCommand(i);
    if (IsBaselineEngine(spec.engine())) there.insert(ComparisonKey(spec, spec.engine()));
  }
  Value is_baseline;
  is_baseline.set_bool_value(true);
  for (size_t i = 0; i < grid; ++i) {
    const RunSpec measured = cells.SpecWithoutCommand(i);
    if (!IsMeasured(measured)) continue;
    for (absl::string_view engine : {UnsynchronisedEngine().name, SerialEngine().name}) {
      if (!there.insert(ComparisonKey(measured, engine)).second) continue;
      Value name;
      name.set_string_value(std::string(engine));
      const int of_engine = values.NumberOf("engine", name);
      std::vector<int> key{of_engine};
      std::vector<int> spec{of_engine, values.NumberOf("communication_baseline", is_baseline)};
      for (const int number : cells.key(i)) {
        const std::string& axis = values.name(number);
        if (axis != "engine" && EngineReads(engine, axis)) key.push_back(number);
      }
      for (const int number : cells.spec(i)) {
        if (values.name(number) != "engine") spec.push_back(number);
      }
      std::ranges::sort(key, {}, [&](int number) -> const std::string& { return values.name(number); });
      cells.Add(key, spec);
    }
  }
  study->baselines = static_cast<int>(cells.size() - grid);
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

  if (absl::Status keys = CheckKeys(grid); !keys.ok()) return keys;
  if (absl::Status cost = CheckExcludeCost(raw, grid); !cost.ok()) return cost;
  ExcludeIndex exclude(raw, grid);
  CellMatcher baseline(raw.baseline(), grid);
  bool has_baseline = raw.baseline().fields().empty();

  CellMaker maker(raw, spec, grid);
  study.cells = study.excluded = CellList(maker.values());
  CellChecker checker(raw, spec, grid, runs_here, &violations);
  ShapeOfCells shape;
  std::vector<int> index(grid.factors.size());
  int64_t cells = 1;
  for (const GridFactor& factor : grid.factors) cells *= factor.length;
  study.cells.Reserve(cells, 2 * index.size());
  for (int64_t n = 0; n < cells; ++n) {
    if (n % kCellsPerCheck == 0 && stopped && stopped())
      return absl::CancelledError("the expansion of the study was stopped");
    maker.MoveTo(index);
    const RunSpec& run = maker.spec();
    if (exclude.Matches(index, run) || !checker.Check(run, index)) {
      maker.AddTo(&study.excluded);
    } else {
      has_baseline = has_baseline || baseline.Matches(index, run);
      shape.Add({run.ranks(), run.cpus_per_rank(), run.gpus_per_rank()}, SamplesOfRank(run));
      maker.AddTo(&study.cells);
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

  const size_t in_grid = study.cells.size();
  if (spec.measure().communication()) AddBaselines(&study);
  for (size_t i = in_grid; i < study.cells.size(); ++i)
    shape.Add(study.cells.NeedsOf(i), SamplesOfRank(study.cells.SpecWithoutCommand(i)));
  study.cells.values().Finish();
  if (absl::Status size = CheckSizeWithBaselines(study); !size.ok()) return size;
  study.runs = Order(spec, static_cast<int>(study.cells.size()));
  study.shape = shape.Get(spec.resources());
  study.group = shape.GetGroup(spec);
  return study;
}

StudySpec WithDefaults(StudySpec spec) {
  FillDefaults(&spec);
  return spec;
}

}  // namespace scalelab
