#include "server/analysis/curve.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "catalog/engines.h"
#include "google/protobuf/util/json_util.h"
#include "nlohmann/json.hpp"
#include "server/analysis/bootstrap.h"
#include "server/analysis/communication.h"
#include "server/analysis/fits.h"
#include "server/analysis/statistics.h"
#include "study/communication.h"

namespace scalelab::server {
namespace {

using nlohmann::json;
using scalelab::v1::CurvePoint;
using scalelab::v1::CurveSeries;
using scalelab::v1::Estimate;

// The rows of one cell with one fingerprint.
struct Point {
  const db::CellRow* cell = nullptr;
  int succeeded = 0, failed = 0, out_of_memory = 0, pending = 0, cancelled = 0;
  Sample throughput;
  std::vector<double> epoch_seconds, comm_share, peak_memory, accuracy, train_loss, time_to_accuracy;
  std::vector<double> concurrent;  // mean number of concurrent attempts of each repeat that succeeded
  int most_concurrent = 0;
};

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

  scalelab::v1::GetCurveResponse Make() {
    scalelab::v1::GetCurveResponse response;
    response.set_display_name(spec_.study());
    response.set_scaling(Strong() ? "strong" : "weak");
    comparisons_.resize(cells_.size());
    if (spec_.measure().communication()) comparisons_ = FindComparisons(cells_, parameters_);
    GroupCells();
    AssignRows();
    bootstrap_.emplace(blocks_, options_.resamples, options_.confidence);
    ReadBaseline();
    for (const Group& group : groups_) {
      *response.add_series() = MakeSeries(group, group.majority);
      for (const auto& [fingerprint, runs] : group.fingerprints) {
        if (fingerprint != group.majority) *response.add_series() = MakeSeries(group, fingerprint);
      }
    }
    return response;
  }

 private:
  bool Strong() const { return spec_.scaling().mode() != scalelab::v1::Scaling::WEAK; }
  void GroupCells();
  void AssignRows();
  void ReadBaseline();
  std::vector<Point> Collect(const Group& group, const std::string& fingerprint) const;
  CurveSeries MakeSeries(const Group& group, const std::string& fingerprint);
  scalelab::v1::CommunicationCost MakeCommunicationCost(size_t cell, const std::string& fingerprint) const;
  std::optional<Point> FindBaseline(const Group& group, const std::string& fingerprint,
                                    const std::vector<Point>& points, CurveSeries& series) const;
  void AddFits(const std::vector<Point>& points, const std::vector<std::vector<float>>& means,
               const Point* baseline, CurveSeries& series) const;

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
  std::vector<int> block_of_repeat_;                  // numbers the repeats with rows without gaps
  int blocks_ = 0;
  std::optional<BlockBootstrap> bootstrap_;
  json baseline_ = json::object();  // axes of the baseline other than ranks
  int baseline_ranks_ = 0;          // 0: the smallest
};

void CurveMaker::GroupCells() {
  std::vector<size_t> order(cells_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return cells_[a].position < cells_[b].position; });
  std::map<std::string, size_t> known;
  const CellValues& values = parameters_.values();
  std::vector<json> shown(static_cast<size_t>(values.size()) + 1);  // by number of the value
  group_of_.resize(cells_.size());
  for (size_t i : order) {
    if (comparisons_[i].baseline) continue;
    json key = json::object();
    for (const int number : parameters_.key(i)) {
      if (values.name(number) == "ranks") continue;
      if (shown[number].is_null()) shown[number] = ToJson(values.value(number));
      key[values.name(number)] = shown[number];
    }
    const auto [it, added] = known.try_emplace(key.dump(), groups_.size());
    if (added) groups_.emplace_back().key = std::move(key);
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
  for (const db::CurveRow& row : rows_) {
    if (row.cell_id != last_id) {  // rows are sorted by cell
      const auto it = index.find(row.cell_id);
      if (it == index.end()) continue;
      last_id = row.cell_id;
      cell = it->second;
    }
    of_[cell].push_back(&row);
    if (row.state == db::RunState::kSucceeded && !comparisons_[cell].baseline)
      ++groups_[group_of_[cell]].fingerprints[row.fingerprint];
    if (row.repeat >= 0 && static_cast<size_t>(row.repeat) >= block_of_repeat_.size()) {
      block_of_repeat_.resize(row.repeat + 1, -1);
    }
    if (row.repeat >= 0) block_of_repeat_[row.repeat] = 0;
  }
  for (int& block : block_of_repeat_) {
    if (block == 0) block = blocks_++;
  }
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

std::vector<Point> CurveMaker::Collect(const Group& group, const std::string& fingerprint) const {
  std::vector<Point> points;
  const bool majority = fingerprint == group.majority;
  for (size_t cell : group.cells) {
    Point point;
    point.cell = &cells_[cell];
    int elsewhere = 0;
    for (const db::CurveRow* row : of_[cell]) {
      switch (row->state) {
        case db::RunState::kSucceeded:
          if (row->fingerprint != fingerprint) {
            ++elsewhere;
            continue;
          }
          ++point.succeeded;
          if (row->throughput.has_value() && row->repeat >= 0) {
            point.throughput.block.push_back(block_of_repeat_[row->repeat]);
            point.throughput.value.push_back(*row->throughput);
          }
          if (row->epoch_seconds) point.epoch_seconds.push_back(*row->epoch_seconds);
          if (row->comm_share) point.comm_share.push_back(*row->comm_share);
          if (row->peak_memory) point.peak_memory.push_back(*row->peak_memory);
          if (row->accuracy) point.accuracy.push_back(*row->accuracy);
          if (row->train_loss) point.train_loss.push_back(*row->train_loss);
          if (row->time_to_accuracy) point.time_to_accuracy.push_back(*row->time_to_accuracy);
          if (!concurrency_.empty()) {
            const Concurrency& concurrency = concurrency_[row - rows_.data()];
            point.concurrent.push_back(concurrency.mean);
            point.most_concurrent = std::max(point.most_concurrent, concurrency.most);
          }
          break;
        // A run without results has no fingerprint; it is counted in the series of the majority.
        case db::RunState::kFailed:
          if (!majority) break;
          ++point.failed;
          if (row->cause == db::Cause::kOutOfMemory) ++point.out_of_memory;
          break;
        case db::RunState::kCancelled:
          if (majority) ++point.cancelled;
          break;
        default:
          if (majority) ++point.pending;
      }
    }
    // A cell with results of other fingerprints only is a point of their series, not of this one.
    if (point.succeeded == 0 &&
        (!majority || (elsewhere > 0 && point.failed + point.pending + point.cancelled == 0))) {
      continue;
    }
    points.push_back(std::move(point));
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

// Returns the cell that the ratios of a series are relative to, with its rows; nothing when it
// has no results.
std::optional<Point> CurveMaker::FindBaseline(const Group& group, const std::string& fingerprint,
                                              const std::vector<Point>& points, CurveSeries& series) const {
  json wanted = group.key;
  for (const auto& [axis, value] : baseline_.items()) {
    if (wanted.contains(axis)) wanted[axis] = value;  // a key that is not an axis is equal in all cells
  }
  const Group* target = nullptr;
  for (const Group& other : groups_) {
    if (other.key == wanted) target = &other;
  }
  if (target == nullptr) {
    series.add_notes(absl::StrCat("no baseline: the study has no cell with ", wanted.dump()));
    return std::nullopt;
  }
  std::vector<Point> others;
  std::string from = fingerprint;
  if (target != &group) {
    if (!target->fingerprints.contains(from)) from = target->majority;
    others = Collect(*target, from);
    series.add_notes(absl::StrCat("relative to ", wanted.dump()));
    if (from != fingerprint) {
      series.add_notes(
          absl::StrCat("the baseline ran on other hardware or software (fingerprint ", from, ")"));
    }
  }
  const std::vector<Point>& candidates = target == &group ? points : others;
  int ranks = baseline_ranks_;
  if (ranks == 0) {
    for (size_t cell : target->cells) {  // sorted by ranks
      if (cells_[cell].excluded) continue;
      ranks = cells_[cell].ranks;
      break;
    }
  }
  for (const Point& point : candidates) {
    if (point.cell->ranks == ranks && !point.cell->excluded && point.throughput.size() > 0 &&
        Mean(point.throughput.value) > 0) {
      return point;
    }
  }
  series.add_notes(absl::StrCat("no speedups: the baseline of ", ranks, ranks == 1 ? " rank" : " ranks",
                                " has no results in this series"));
  return std::nullopt;
}

// Returns the ratio of the means, with median and standard deviation of the ratios within blocks.
Estimate EstimateRatio(const Point& point, const Point& baseline, const std::vector<float>& means,
                       const std::vector<float>& baseline_means, const BlockBootstrap& bootstrap) {
  Estimate estimate;
  if (point.cell == baseline.cell) {  // the ratio to itself has no noise
    estimate.set_mean(1);
    estimate.set_median(1);
    estimate.set_stddev(0);
    estimate.set_low(1);
    estimate.set_high(1);
    return estimate;
  }
  const Sample &a = point.throughput, &b = baseline.throughput;
  std::vector<double> ratios;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (a.block[i] < b.block[j])
      ++i;
    else if (b.block[j] < a.block[i])
      ++j;
    else
      ratios.push_back(a.value[i++] / b.value[j++]);
  }
  estimate.set_mean(Mean(a.value) / Mean(b.value));
  estimate.set_median(ratios.empty() ? Median(a.value) / Median(b.value) : Median(ratios));
  if (ratios.size() >= 2) estimate.set_stddev(StandardDeviation(ratios));
  if (const auto interval = bootstrap.Ratio(a, b, means, baseline_means)) {
    estimate.set_low(interval->low);
    estimate.set_high(interval->high);
  }
  return estimate;
}

Estimate Scaled(Estimate estimate, double factor) {
  estimate.set_mean(estimate.mean() * factor);
  estimate.set_median(estimate.median() * factor);
  if (estimate.has_stddev()) estimate.set_stddev(estimate.stddev() * factor);
  if (estimate.has_low()) estimate.set_low(estimate.low() * factor);
  if (estimate.has_high()) estimate.set_high(estimate.high() * factor);
  return estimate;
}

void AddConcurrencyNote(const std::vector<Point>& points, CurveSeries& series) {
  std::vector<double> concurrent;
  int most = 0;
  for (const Point& point : points) {
    concurrent.insert(concurrent.end(), point.concurrent.begin(), point.concurrent.end());
    most = std::max(most, point.most_concurrent);
  }
  if (most <= 1) return;
  series.add_notes(
      absl::StrFormat("up to %d runs of the service ran at the same time as these, on average %.1f, "
                      "themselves included; runs that share "
                      "a network or a disk disturb each other",
                      most, Mean(concurrent)));
}

CurveSeries CurveMaker::MakeSeries(const Group& group, const std::string& fingerprint) {
  CurveSeries series;
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
  const std::vector<Point> points = Collect(group, fingerprint);
  std::optional<Point> baseline;
  if (std::any_of(points.begin(), points.end(), [](const Point& p) { return p.succeeded > 0; })) {
    baseline = FindBaseline(group, fingerprint, points, series);
  }
  std::vector<float> baseline_means;
  if (baseline.has_value()) {
    series.set_baseline_ranks(baseline->cell->ranks);
    series.set_baseline_throughput(Mean(baseline->throughput.value));
    if (bootstrap_->Resamples(baseline->throughput.size())) {
      baseline_means = bootstrap_->RelativeMeans(baseline->throughput);
    }
  }

  bool single = false;
  std::vector<std::vector<float>> means(points.size());
  for (size_t i = 0; i < points.size(); ++i) {
    const Point& point = points[i];
    CurvePoint& out = *series.add_points();
    out.set_ranks(point.cell->ranks);
    out.set_n(point.succeeded);
    out.set_state(StateOf(point));
    out.set_failed(point.failed);
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
    mean_of(point.time_to_accuracy, kNoLimit, &CurvePoint::mutable_time_to_accuracy);
    if (!point.concurrent.empty()) out.set_concurrent_attempts(Mean(point.concurrent));
    out.set_most_concurrent_attempts(point.most_concurrent);
    if (const size_t cell = point.cell - cells_.data(); comparisons_[cell].measured && point.succeeded > 0) {
      *out.mutable_communication() = MakeCommunicationCost(cell, fingerprint);
    }
    if (const auto it = differences_.find(point.cell->id); it != differences_.end() && point.succeeded > 0) {
      *out.mutable_training_difference() = it->second;
      series.add_notes(it->second.message());
    }
    if (!baseline.has_value() || point.throughput.size() == 0) continue;
    single = single || point.throughput.size() == 1 || baseline->throughput.size() == 1;
    const bool is_baseline = point.cell == baseline->cell;
    if (is_baseline)
      means[i] = baseline_means;
    else if (bootstrap_->Resamples(point.throughput.size()))
      means[i] = bootstrap_->RelativeMeans(point.throughput);
    *out.mutable_speedup() = EstimateRatio(point, *baseline, means[i], baseline_means, *bootstrap_);
    *out.mutable_efficiency() =
        Scaled(out.speedup(), static_cast<double>(baseline->cell->ranks) /
                                  static_cast<double>(std::max(1, point.cell->ranks)));
  }
  AddConcurrencyNote(points, series);
  if (single) series.add_notes("single repeats have no interval; ask for 5 repeats or more");
  if (Strong() && baseline.has_value()) AddFits(points, means, &*baseline, series);
  return series;
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

void CurveMaker::AddFits(const std::vector<Point>& points, const std::vector<std::vector<float>>& means,
                         const Point* baseline, CurveSeries& series) const {
  // A law describes one series. If the baseline is in another series, the speedups are relative to the
  // smallest world size with results.
  std::vector<double> ranks;
  std::vector<const Sample*> samples;
  std::vector<std::vector<float>> used;
  size_t base = 0;
  for (size_t i = 0; i < points.size(); ++i) {
    if (points[i].throughput.size() == 0 || Mean(points[i].throughput.value) <= 0) continue;
    if (points[i].cell == baseline->cell) base = ranks.size();
    ranks.push_back(points[i].cell->ranks);
    samples.push_back(&points[i].throughput);
    used.push_back(means[i]);
  }
  for (scalelab::v1::ScalingFit& fit : FitLaws(ranks, samples, used, base, *bootstrap_)) {
    *series.add_fits() = std::move(fit);
  }
}

}  // namespace

scalelab::v1::GetCurveResponse MakeCurve(
    const scalelab::v1::StudySpec& spec, const std::vector<db::CellRow>& cells, const CellList& parameters,
    const std::vector<db::CurveRow>& rows, const CurveOptions& options,
    const std::map<int64_t, scalelab::v1::TrainingDifference>& differences,
    const std::vector<Concurrency>& concurrency) {
  return CurveMaker(spec, cells, parameters, rows, options, differences, concurrency).Make();
}

}  // namespace scalelab::server
