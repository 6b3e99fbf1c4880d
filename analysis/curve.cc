#include "analysis/curve.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "analysis/bootstrap.h"
#include "analysis/communication.h"
#include "analysis/fits.h"
#include "analysis/notes.h"
#include "analysis/parallel.h"
#include "analysis/points.h"
#include "analysis/precision.h"
#include "analysis/statistics.h"
#include "catalog/engines.h"
#include "google/protobuf/util/json_util.h"
#include "nlohmann/json.hpp"
#include "study/communication.h"

namespace scalelab::analysis {
namespace {

using nlohmann::json;
using scalelab::v1::CurvePoint;
using scalelab::v1::CurveSeries;
using scalelab::v1::Estimate;

// Cells that differ only in ranks, sorted by ranks. Each fingerprint becomes a series of the response.
// NOLINTNEXTLINE(bugprone-exception-escape): clang-tidy follows the destructor of json, which may allocate memory.
struct Group {
  json key;
  std::vector<size_t> cells;
  std::map<std::string, int> fingerprints;  // number of succeeded runs, by fingerprint
  std::string majority;
};

// Returns null if the message cannot be converted.
json ToJson(const google::protobuf::Message& message) {
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(message, &text).ok()) return nullptr;
  return json::parse(text, nullptr, false);
}

class CurveMaker {
 public:
  CurveMaker(const scalelab::v1::StudySpec& spec, const std::vector<db::CellRow>& cells,
             const CellList& parameters, const std::vector<db::CurveRow>& rows, const CurveOptions& options,
             const std::map<int64_t, scalelab::v1::TrainingDifference>& differences,
             const std::vector<Concurrency>& concurrency)
      : spec_(spec),
        cells_(cells),
        parameters_(parameters),
        rows_(rows),
        options_(options),
        differences_(differences),
        concurrency_(concurrency) {}

  scalelab::v1::GetCurveResponse Make(CurvePlaces* places) {
    scalelab::v1::GetCurveResponse response;
    response.set_display_name(spec_.study());
    response.set_scaling(Strong() ? "strong" : "weak");
    comparisons_.resize(cells_.size());
    if (spec_.measure().communication()) comparisons_ = FindComparisons(cells_, parameters_);
    GroupCells();
    AssignRows();
    const double confidence =
        SequentialConfidenceOf(spec_, cells_, parameters_, rows_).value_or(options_.confidence);
    bootstrap_.emplace(blocks_, options_.resamples, confidence);
    CollectPoints();
    ReadBaseline();
    struct Part {
      const Group& group;
      const std::string& fingerprint;
    };
    std::vector<Part> parts;  // one for each series
    for (const Group& group : groups_) {
      parts.push_back({group, group.majority});
      for (const auto& [fingerprint, runs] : group.fingerprints) {
        if (fingerprint != group.majority) parts.push_back({group, fingerprint});
      }
    }
    for (size_t i = 0; i < parts.size(); ++i) response.add_series();
    std::vector<CurvePlaces::Series> of_series(parts.size());
    ForEachInParallel(parts.size(), options_.ThreadsFor(rows_.size()), [&](size_t i) {
      MakeSeries(parts[i].group, parts[i].fingerprint, *response.mutable_series(static_cast<int>(i)),
                 of_series[i]);
    });
    if (places != nullptr) {
      places->series = std::move(of_series);
      places->confidence = confidence;
    }
    return response;
  }

 private:
  bool Adaptive() const { return spec_.has_adaptive_repeats(); }
  bool Strong() const { return spec_.scaling().mode() != scalelab::v1::Scaling::WEAK; }
  void GroupCells();
  void AssignRows();
  void ReadBaseline();
  void CollectPoints();
  Point& PointOf(const std::string& fingerprint, size_t cell);
  std::vector<const Point*> PointsOf(const Group& group, const std::string& fingerprint) const;
  // Fills in `series` and `places`, which must be empty. Several threads may call this function.
  void MakeSeries(const Group& group, const std::string& fingerprint, CurveSeries& series,
                  CurvePlaces::Series& places);
  CurvePoint MakePoint(const Point& point, const std::string& fingerprint) const;
  scalelab::v1::CommunicationCost MakeCommunicationCost(size_t cell, const std::string& fingerprint) const;
  // The base point of the ratios of a series, and its hardware.
  struct Baseline {
    const Point* point;
    std::string fingerprint;
  };
  std::optional<Baseline> FindBaseline(const Group& group, const std::string& fingerprint,
                                       CurveSeries& series) const;
  std::optional<CellRatios::Ratio> Compare(const Point& point, const std::string& fingerprint,
                                           const Baseline& baseline);
  void AddFits(const std::vector<const Point*>& points, const Point* baseline, CellRatios& ratios,
               CurveSeries& series) const;

  const scalelab::v1::StudySpec& spec_;
  const std::vector<db::CellRow>& cells_;
  const CellList& parameters_;
  const std::vector<db::CurveRow>& rows_;
  const CurveOptions options_;
  const std::map<int64_t, scalelab::v1::TrainingDifference>& differences_;  // by cell id
  const std::vector<Concurrency>& concurrency_;                             // by row; may be empty
  std::vector<Group> groups_;
  std::vector<size_t> group_of_;                      // by cell; unused for communication baselines
  std::vector<Comparison> comparisons_;               // by cell
  std::vector<std::vector<const db::CurveRow*>> of_;  // rows by cell
  std::vector<int> block_of_repeat_;                  // see BlockOfRepeat
  int blocks_ = 0;
  std::optional<BlockBootstrap> bootstrap_;
  std::map<std::string, Hardware> hardware_;  // by fingerprint; without communication baselines
  json baseline_ = json::object();            // axes of the baseline other than ranks
  int baseline_ranks_ = 0;                    // 0: the smallest
};

void CurveMaker::GroupCells() {
  std::vector<size_t> order(cells_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return cells_[a].position < cells_[b].position; });
  std::map<std::vector<int>, size_t> known;  // by the numbers of the values
  const CellValues& values = parameters_.values();
  std::vector<json> shown(static_cast<size_t>(values.size()) + 1);  // by number of the value
  group_of_.resize(cells_.size());
  for (size_t i : order) {
    if (comparisons_[i].baseline) continue;
    std::vector<int> numbers(parameters_.key(i).begin(), parameters_.key(i).end());
    std::erase_if(numbers, [&](int number) { return values.name(number) == "ranks"; });
    std::ranges::sort(numbers);
    const auto [it, added] = known.try_emplace(std::move(numbers), groups_.size());
    if (added) {
      json& key = groups_.emplace_back().key = json::object();
      for (const int number : it->first) {
        if (shown[number].is_null()) shown[number] = ToJson(values.value(number));
        key[values.name(number)] = shown[number];
      }
    }
    groups_[it->second].cells.push_back(i);
    group_of_[i] = it->second;
  }
  for (Group& group : groups_) {
    std::stable_sort(group.cells.begin(), group.cells.end(),
                     [&](size_t a, size_t b) { return cells_[a].ranks < cells_[b].ranks; });
  }
}

void CurveMaker::AssignRows() {
  absl::flat_hash_map<int64_t, size_t> index;
  for (size_t i = 0; i < cells_.size(); ++i) index[cells_[i].id] = i;
  of_.resize(cells_.size());
  int64_t last_id = -1;
  size_t cell = 0;
  // The counter for the fingerprint of the previous row. Most rows have the same fingerprint as the row
  // before them, which saves a search.
  const std::string* fingerprint = nullptr;
  int* runs = nullptr;
  for (const db::CurveRow& row : rows_) {
    if (row.state == db::RunState::kSkipped) continue;
    if (row.cell_id != last_id) {  // rows are sorted by cell
      const auto it = index.find(row.cell_id);
      if (it == index.end()) continue;
      last_id = row.cell_id;
      cell = it->second;
      runs = nullptr;
    }
    of_[cell].push_back(&row);
    if (row.state != db::RunState::kSucceeded) continue;
    if (!comparisons_[cell].baseline) {
      if (runs == nullptr || *fingerprint != row.fingerprint)
        runs = &groups_[group_of_[cell]].fingerprints[row.fingerprint];
      fingerprint = &row.fingerprint;
      ++*runs;
    }
  }
  block_of_repeat_ = BlockOfRepeat(rows_);
  blocks_ = BlocksWithResults(block_of_repeat_);
  for (Group& group : groups_) {
    int most = 0;
    for (const auto& [fingerprint, runs] : group.fingerprints) {
      if (runs > most) most = runs, group.majority = fingerprint;
    }
  }
}

void CurveMaker::ReadBaseline() {
  baseline_ = ToJson(spec_.baseline());
  if (!baseline_.is_object()) baseline_ = json::object();
  if (const auto it = baseline_.find("ranks"); it != baseline_.end()) {
    if (it->is_number()) baseline_ranks_ = static_cast<int>(it->get<double>());
    baseline_.erase(it);
  }
}

Point& CurveMaker::PointOf(const std::string& fingerprint, size_t cell) {
  Hardware& hardware = hardware_[fingerprint];
  const auto [it, added] = hardware.place.try_emplace(cell, hardware.points.size());
  if (added) {
    Point& point = hardware.points.emplace_back();
    point.cell = &cells_[cell];
    point.index = cell;
    point.place = it->second;
    point.Reserve(of_[cell].size());
  }
  return hardware.points[it->second];
}

// A run without results has no fingerprint; it is counted in the series of the majority.
void CurveMaker::CollectPoints() {
  for (const Group& group : groups_) {
    for (const size_t cell : group.cells) {
      if (of_[cell].empty()) PointOf(group.majority, cell);
      const std::string* fingerprint = nullptr;
      Point* of_row = nullptr;  // the point of `fingerprint`; invalid after another point was added
      for (const db::CurveRow* row : of_[cell]) {
        if (row->state == db::RunState::kSucceeded) {
          const Concurrency* concurrency = concurrency_.empty() ? nullptr : &concurrency_[row - rows_.data()];
          if (of_row == nullptr || *fingerprint != row->fingerprint)
            of_row = &PointOf(row->fingerprint, cell);
          fingerprint = &row->fingerprint;
          AddResults(*row, block_of_repeat_, concurrency, *of_row);
          continue;
        }
        of_row = nullptr;
        Point& point = PointOf(group.majority, cell);
        if (row->state == db::RunState::kFailed) {
          ++point.failed;
          if (row->cause == db::Cause::kOutOfMemory) ++point.out_of_memory;
        } else if (row->state == db::RunState::kCancelled) {
          ++point.cancelled;
        } else {
          ++point.pending;
        }
      }
    }
  }
  for (auto& [fingerprint, hardware] : hardware_) {
    std::vector<const Sample*> samples;
    for (const Point& point : hardware.points) samples.push_back(&point.throughput);
    hardware.outliers = FindOutliers(samples, blocks_);
    hardware.ratios.emplace(std::move(samples), *bootstrap_, Adaptive());
  }
}

std::vector<const Point*> CurveMaker::PointsOf(const Group& group, const std::string& fingerprint) const {
  std::vector<const Point*> points;
  const auto hardware = hardware_.find(fingerprint);
  if (hardware == hardware_.end()) return points;
  for (const size_t cell : group.cells) {
    if (const Point* point = hardware->second.Find(cell)) points.push_back(point);
  }
  return points;
}

CurvePoint::State StateOf(const Point& point) {
  if (point.cell->excluded) return CurvePoint::EXCLUDED;
  const bool others = point.failed + point.cancelled + point.pending > 0;
  if (point.succeeded > 0) return others ? CurvePoint::PARTIAL : CurvePoint::OK;
  if (point.pending > 0) return CurvePoint::PENDING;
  if (point.out_of_memory > 0) return CurvePoint::OUT_OF_MEMORY;
  return point.failed > 0 ? CurvePoint::FAILED : CurvePoint::MISSING;
}

// Returns nothing when the base case has no results.
std::optional<CurveMaker::Baseline> CurveMaker::FindBaseline(const Group& group,
                                                             const std::string& fingerprint,
                                                             CurveSeries& series) const {
  json wanted = group.key;
  for (const auto& [axis, value] : baseline_.items()) {
    // Keys that are not axes have the same value in all cells.
    if (wanted.contains(axis)) wanted[axis] = value;
  }
  const Group* target = nullptr;
  for (const Group& other : groups_) {
    if (other.key == wanted) target = &other;
  }
  if (target == nullptr) {
    series.add_notes(absl::StrCat("no baseline: the study has no cell with ", wanted.dump()));
    return std::nullopt;
  }
  std::string from = fingerprint;
  if (target != &group) {
    if (!target->fingerprints.contains(from)) from = target->majority;
    series.add_notes(absl::StrCat("relative to ", wanted.dump()));
  }
  int ranks = baseline_ranks_;
  if (ranks == 0) {
    for (size_t cell : target->cells) {  // sorted by ranks
      if (cells_[cell].excluded) continue;
      ranks = cells_[cell].ranks;
      break;
    }
  }
  bool without_throughput = false;
  for (const Point* point : PointsOf(*target, from)) {
    if (point->cell->ranks != ranks || point->cell->excluded) continue;
    if (point->throughput.size() > 0) {
      if (from != fingerprint)
        series.add_notes(
            absl::StrCat("the baseline ran on other hardware or software (fingerprint ", from, ")"));
      return Baseline{point, from};
    }
    without_throughput = without_throughput || point->succeeded > 0;
  }
  series.add_notes(absl::StrCat(
      "no speedups: the baseline of ", ranks, ranks == 1 ? " rank" : " ranks",
      without_throughput ? " succeeded without a usable run/throughput" : " has no results in this series"));
  return std::nullopt;
}

std::optional<CellRatios::Ratio> CurveMaker::Compare(const Point& point, const std::string& fingerprint,
                                                     const Baseline& baseline) {
  if (baseline.fingerprint == fingerprint)
    return hardware_.at(fingerprint).ratios->Compare(point.place, baseline.point->place);
  return CellRatios({&point.throughput, &baseline.point->throughput}, *bootstrap_, Adaptive()).Compare(0, 1);
}

Estimate Scaled(Estimate estimate, double factor) {
  estimate.set_mean(estimate.mean() * factor);
  estimate.set_median(estimate.median() * factor);
  if (estimate.has_stddev()) estimate.set_stddev(estimate.stddev() * factor);
  if (estimate.has_low()) estimate.set_low(estimate.low() * factor);
  if (estimate.has_high()) estimate.set_high(estimate.high() * factor);
  return estimate;
}

CurvePoint CurveMaker::MakePoint(const Point& point, const std::string& fingerprint) const {
  CurvePoint out;
  out.set_ranks(point.cell->ranks);
  out.set_n(static_cast<int>(point.throughput.size()));
  out.set_asked(point.asked());
  out.set_state(StateOf(point));
  out.set_failed(point.failed);
  out.set_retried(point.retried);
  out.set_noisy(point.noisy);
  out.set_rerun(point.rerun);
  out.set_continued(point.continued);
  out.set_global_batch(point.cell->global_batch);
  if (point.cell->ranks > 0) out.set_batch_per_rank(point.cell->global_batch / point.cell->ranks);
  const auto mean_of = [&](const std::vector<double>& values, double max, auto mutable_field,
                           double min = 0) {
    if (!values.empty()) *(out.*mutable_field)() = EstimateMean(values, bootstrap_->critical(), min, max);
  };
  mean_of(point.throughput.value, kNoLimit, &CurvePoint::mutable_throughput);
  mean_of(point.epoch_seconds, kNoLimit, &CurvePoint::mutable_epoch_seconds);
  mean_of(point.comm_share, 1, &CurvePoint::mutable_comm_share);
  mean_of(point.peak_memory, kNoLimit, &CurvePoint::mutable_peak_memory);
  mean_of(point.accuracy, 1, &CurvePoint::mutable_accuracy);
  mean_of(point.train_loss, kNoLimit, &CurvePoint::mutable_train_loss, -kNoLimit);
  // Without the repeats that did not reach the target, this would be the mean of the fastest.
  if (point.time_to_accuracy.size() == static_cast<size_t>(point.succeeded))
    mean_of(point.time_to_accuracy, kNoLimit, &CurvePoint::mutable_time_to_accuracy);
  if (!point.concurrent.empty()) out.set_concurrent_attempts(Mean(point.concurrent));
  out.set_most_concurrent_attempts(point.most_concurrent);
  if (comparisons_[point.index].measured && point.succeeded > 0)
    *out.mutable_communication() = MakeCommunicationCost(point.index, fingerprint);
  if (const auto it = differences_.find(point.cell->id); it != differences_.end() && point.succeeded > 0)
    *out.mutable_training_difference() = it->second;
  return out;
}

void CurveMaker::MakeSeries(const Group& group, const std::string& fingerprint, CurveSeries& series,
                            CurvePlaces::Series& places) {
  // Cannot fail: the key was made from a Struct.
  (void)google::protobuf::util::JsonStringToMessage(group.key.dump(), series.mutable_key());
  series.set_fingerprint(fingerprint);
  if (group.fingerprints.size() > 1) {
    series.add_notes(
        absl::StrCat("runs of these cells were made on ", group.fingerprints.size(),
                     " kinds of hardware or software, each shown as a series of its own; this one (",
                     fingerprint, ") has ", group.fingerprints.at(fingerprint),
                     group.fingerprints.at(fingerprint) == 1 ? " run" : " runs"));
  }
  const std::vector<const Point*> points = PointsOf(group, fingerprint);
  if (points.empty()) return;
  Hardware& hardware = hardware_.at(fingerprint);
  std::optional<Baseline> baseline;
  if (std::any_of(points.begin(), points.end(), [](const Point* p) { return p->succeeded > 0; })) {
    baseline = FindBaseline(group, fingerprint, series);
  }
  if (baseline.has_value()) {
    series.set_baseline_ranks(baseline->point->cell->ranks);
    series.set_baseline_throughput(Mean(baseline->point->throughput.value));
    places.baseline = baseline->point->index;
    places.baseline_fingerprint = baseline->fingerprint;
  }
  const bool own_baseline = baseline.has_value() && baseline->fingerprint == fingerprint &&
                            std::ranges::find(group.cells, baseline->point->index) != group.cells.end();
  bool single = false;
  for (const Point* point : points) {
    CurvePoint& out = *series.add_points() = MakePoint(*point, fingerprint);
    places.cells.push_back(point->index);
    if (out.has_training_difference()) series.add_notes(out.training_difference().message());
    int common = -1;
    if (baseline.has_value() && point->throughput.size() > 0) {
      single = single || point->throughput.size() == 1 || baseline->point->throughput.size() == 1;
      const auto ratio = Compare(*point, fingerprint, *baseline);
      common = ratio.has_value() ? ratio->common : static_cast<int>(point->throughput.size());
      if (ratio.has_value()) {
        *out.mutable_speedup() = ratio->estimate;
        *out.mutable_efficiency() =
            Scaled(out.speedup(), static_cast<double>(baseline->point->cell->ranks) /
                                      static_cast<double>(std::max(1, point->cell->ranks)));
      } else {
        out.add_notes("no speedup: it shares no repeat with the base case, and no other cell connects them");
      }
    }
    AddPointNotes(*point, common, own_baseline, hardware.outliers[point->place], out);
  }
  AddSeriesNotes(points, spec_.order() == scalelab::v1::StudySpec::LISTED, single, *hardware.ratios, series);
  if (Adaptive())
    series.add_notes(
        absl::StrFormat("intervals are computed at %.4g%% and hold with about 95%%, because the number of "
                        "repeats depends on the results",
                        100 * bootstrap_->critical().confidence()));
  if (Strong() && baseline.has_value()) AddFits(points, baseline->point, *hardware.ratios, series);
}

scalelab::v1::CommunicationCost CurveMaker::MakeCommunicationCost(size_t cell,
                                                                  const std::string& fingerprint) const {
  const auto steps_of = [&](std::optional<size_t> other, absl::string_view name) {
    if (!other.has_value()) return Steps{{}, absl::StrCat("the study has no runs of ", name)};
    return StepsOf(cells_[*other].global_batch, name, of_[*other], fingerprint, block_of_repeat_);
  };
  return CompareSteps(steps_of(cell, "this cell"),
                      steps_of(comparisons_[cell].unsynchronised, UnsynchronisedEngine().name),
                      steps_of(comparisons_[cell].serial, SerialEngine().name), *bootstrap_);
}

void CurveMaker::AddFits(const std::vector<const Point*>& points, const Point* baseline, CellRatios& ratios,
                         CurveSeries& series) const {
  // A law describes one series. If the baseline is in another series, the speedups are relative to the
  // smallest world size with results.
  std::vector<double> ranks;
  std::vector<size_t> cells;
  size_t base = 0;
  for (const Point* point : points) {
    if (point->throughput.size() == 0) continue;
    if (point->cell == baseline->cell) base = ranks.size();
    ranks.push_back(point->cell->ranks);
    cells.push_back(point->place);
  }
  for (scalelab::v1::ScalingFit& fit : FitLaws(ranks, cells, base, ratios)) {
    if (fit.lack_of_fit().rejected())
      series.add_notes(
          absl::StrFormat("%s's law does not describe these points (p = %.2g): do not use its parameters",
                          fit.law() == "amdahl" ? "Amdahl" : "Gunther", fit.lack_of_fit().p()));
    *series.add_fits() = std::move(fit);
  }
}

}  // namespace

scalelab::v1::GetCurveResponse MakeCurve(
    const scalelab::v1::StudySpec& spec, const std::vector<db::CellRow>& cells, const CellList& parameters,
    const std::vector<db::CurveRow>& rows, const CurveOptions& options,
    const std::map<int64_t, scalelab::v1::TrainingDifference>& differences,
    const std::vector<Concurrency>& concurrency, CurvePlaces* places) {
  return CurveMaker(spec, cells, parameters, rows, options, differences, concurrency).Make(places);
}

}  // namespace scalelab::analysis
