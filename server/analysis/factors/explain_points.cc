#include "server/analysis/factors/explain_points.h"

#include <span>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "catalog/metric_ranges.h"
#include "server/analysis/factors/gradient_noise.h"
#include "server/analysis/factors/slowest.h"
#include "server/analysis/factors/step_parts.h"
#include "server/analysis/factors/time_to_target.h"

namespace scalelab::server {
namespace {

using scalelab::v1::CurvePoint;
using scalelab::v1::TimeToTarget;

// Finds the rows of cells.
class RowFinder {
 public:
  explicit RowFinder(const ExplainedRows& input) : ranges_(input.cells.size()) {
    absl::flat_hash_map<int64_t, size_t> index;
    for (size_t i = 0; i < input.cells.size(); ++i) index[input.cells[i].id] = i;
    for (size_t begin = 0, end = 0; begin < input.rows.size(); begin = end) {
      while (end < input.rows.size() && input.rows[end].cell_id == input.rows[begin].cell_id) ++end;
      if (const auto it = index.find(input.rows[begin].cell_id); it != index.end())
        ranges_[it->second] = std::span(input.rows).subspan(begin, end - begin);
    }
  }

  // Returns the rows of a cell that succeeded on this hardware and software.
  std::vector<const db::CurveRow*> Succeeded(size_t cell, const std::string& fingerprint) const {
    std::vector<const db::CurveRow*> rows;
    for (const db::CurveRow& row : ranges_[cell]) {
      if (row.state == db::RunState::kSucceeded && row.fingerprint == fingerprint) rows.push_back(&row);
    }
    return rows;
  }

 private:
  std::vector<std::span<const db::CurveRow>> ranges_;  // by cell
};

class TimesFinder {
 public:
  explicit TimesFinder(const std::vector<db::RunTimes>& times) {
    by_attempt_.reserve(times.size());
    for (const db::RunTimes& of_run : times) by_attempt_[of_run.attempt_id] = &of_run;
  }
  // Returns null if there are none.
  const db::RunTimes* Find(const db::CurveRow& row) const {
    const auto it = by_attempt_.find(row.attempt_id);
    return it == by_attempt_.end() ? nullptr : it->second;
  }

 private:
  absl::flat_hash_map<int64_t, const db::RunTimes*> by_attempt_;
};

TimeToTarget TimeOf(const std::vector<const db::CurveRow*>& rows, const TimesFinder* times) {
  static const MetricRange& range = RangeOf("run/time_to_accuracy_s");
  std::vector<TargetRepeat> repeats;
  for (const db::CurveRow* row : rows) {
    TargetRepeat& repeat = repeats.emplace_back();
    if (row->time_to_accuracy.has_value() && range.Contains(*row->time_to_accuracy))
      repeat.seconds = row->time_to_accuracy;
    const db::RunTimes* of_run = times == nullptr ? nullptr : times->Find(*row);
    if (of_run != nullptr) repeat.samples = of_run->samples_to_accuracy;
  }
  return MakeTimeToTarget(repeats);
}

StepCell CellOf(const db::CellRow& cell, const std::vector<const db::CurveRow*>& rows,
                const TimesFinder& times) {
  StepCell steps{cell.ranks, static_cast<double>(cell.global_batch), {}};
  for (const db::CurveRow* row : rows) {
    const db::RunTimes* of_run = times.Find(*row);
    if (of_run == nullptr) continue;
    if (const auto parts = PartsOf(*of_run, row->repeat)) steps.repeats.push_back(*parts);
  }
  return steps;
}

std::vector<GradientNorms> NormsOf(const std::vector<const db::CurveRow*>& rows, const TimesFinder& times) {
  std::vector<GradientNorms> norms;
  for (const db::CurveRow* row : rows) {
    const db::RunTimes* of_run = times.Find(*row);
    if (of_run != nullptr && of_run->rank_norm && of_run->mean_norm)
      norms.push_back({*of_run->rank_norm, *of_run->mean_norm});
  }
  return norms;
}

// Returns whether any cell can have a target. It saves making the specification of every cell.
bool HasTargets(const CellValues& values) {
  if (values.common().target_accuracy() > 0) return true;
  for (int number = 1; number <= values.size(); ++number) {
    if (values.name(number) == "target_accuracy") return true;
  }
  return false;
}

void AddFactorsOf(const StepCell& cell, const StepCell* base, double confidence,
                  const CriticalValues& critical, CurvePoint& point) {
  if (cell.repeats.empty() || cell.ranks <= 0 || cell.samples <= 0) {
    point.mutable_factors()->set_missing("no repeat has the times of all ranks");
    return;
  }
  *point.mutable_factors() = MakeFactors(cell, base, critical);
  if (auto rank = SlowestRank(cell, confidence))
    *point.mutable_factors()->mutable_slowest_rank() = *std::move(rank);
  if (auto node = SlowestNode(cell, confidence))
    *point.mutable_factors()->mutable_slowest_node() = *std::move(node);
}

}  // namespace

void AddTimesToTarget(const ExplainedRows& input, scalelab::v1::GetCurveResponse& curve) {
  if (!HasTargets(input.parameters.values())) return;
  const RowFinder finder(input);
  for (int s = 0; s < curve.series_size(); ++s) {
    auto& series = *curve.mutable_series(s);
    for (int p = 0; p < series.points_size(); ++p) {
      const size_t cell = input.places.series[s].cells[p];
      if (input.parameters.SpecWithoutCommand(cell).target_accuracy() <= 0) continue;
      const auto rows = finder.Succeeded(cell, series.fingerprint());
      if (!rows.empty()) *series.mutable_points(p)->mutable_time_to_target() = TimeOf(rows, nullptr);
    }
  }
}

void AddFactors(const ExplainedRows& input, const std::vector<db::RunTimes>& times,
                const CurveOptions& options, scalelab::v1::GetCurveResponse& curve) {
  const RowFinder finder(input);
  const TimesFinder times_finder(times);
  const CriticalValues critical(options.confidence);
  for (int s = 0; s < curve.series_size(); ++s) {
    auto& series = *curve.mutable_series(s);
    const CurvePlaces::Series& places = input.places.series[s];
    StepCell base;
    TimeToTarget base_time;
    if (places.baseline.has_value()) {
      const auto rows = finder.Succeeded(*places.baseline, places.baseline_fingerprint);
      base = CellOf(input.cells[*places.baseline], rows, times_finder);
      base_time = TimeOf(rows, &times_finder);
    }
    for (int p = 0; p < series.points_size(); ++p) {
      CurvePoint& point = *series.mutable_points(p);
      const db::CellRow& cell = input.cells[places.cells[p]];
      const auto rows = finder.Succeeded(places.cells[p], series.fingerprint());
      if (rows.empty()) continue;
      AddFactorsOf(CellOf(cell, rows, times_finder), base.repeats.empty() ? nullptr : &base,
                   options.confidence, critical, point);
      const std::vector<GradientNorms> norms = NormsOf(rows, times_finder);
      if (!norms.empty())
        *point.mutable_gradient_noise() =
            MakeGradientNoise(cell.ranks, cell.global_batch, norms,
                              point.has_throughput() ? &point.throughput() : nullptr, critical);
      if (!point.has_time_to_target()) continue;
      *point.mutable_time_to_target() = TimeOf(rows, &times_finder);
      CompareConvergence(base_time, *point.mutable_time_to_target());
    }
  }
}

}  // namespace scalelab::server
