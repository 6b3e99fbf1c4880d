#include "analysis/factors/explain_points.h"

#include <algorithm>
#include <span>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "analysis/factors/gradient_noise.h"
#include "analysis/factors/node_comparison.h"
#include "analysis/factors/slowest.h"
#include "analysis/factors/step_parts.h"
#include "analysis/factors/time_to_target.h"
#include "analysis/parallel.h"
#include "analysis/sample.h"
#include "catalog/metric_ranges.h"

namespace scalelab::analysis {
namespace {

using scalelab::v1::CurvePoint;
using scalelab::v1::TimeToTarget;

// A run that succeeded, with the times of its ranks; null if the ranks have not reported them.
struct Repeat {
  const db::CurveRow* row;
  const db::RunTimes* times;
};

class RepeatFinder {
 public:
  RepeatFinder(const ExplainedRows& input, const std::vector<db::RunTimes>& times)
      : ranges_(input.cells.size()), times_(times) {
    absl::flat_hash_map<int64_t, size_t> index;
    for (size_t i = 0; i < input.cells.size(); ++i) index[input.cells[i].id] = i;
    for (size_t begin = 0, end = 0; begin < input.rows.size(); begin = end) {
      while (end < input.rows.size() && input.rows[end].cell_id == input.rows[begin].cell_id) ++end;
      if (const auto it = index.find(input.rows[begin].cell_id); it != index.end())
        ranges_[it->second] = std::span(input.rows).subspan(begin, end - begin);
    }
  }

  // Returns the repeats of a cell that succeeded on this hardware and software.
  std::vector<Repeat> Succeeded(size_t cell, const std::string& fingerprint) const {
    std::vector<Repeat> repeats;
    repeats.reserve(ranges_[cell].size());
    auto next = times_.end();  // the times usually follow those of the previous row
    for (const db::CurveRow& row : ranges_[cell]) {
      if (row.state != db::RunState::kSucceeded || row.fingerprint != fingerprint) continue;
      if (next == times_.end() || next->run_id != row.run_id)
        next = std::ranges::lower_bound(times_, row.run_id, {}, &db::RunTimes::run_id);
      const bool found = next != times_.end() && next->run_id == row.run_id;
      repeats.push_back({&row, found && next->attempt_id == row.attempt_id ? &*next : nullptr});
      if (found) ++next;
    }
    return repeats;
  }

 private:
  std::vector<std::span<const db::CurveRow>> ranges_;  // by cell
  const std::vector<db::RunTimes>& times_;             // by run
};

TimeToTarget TimeOf(const std::vector<Repeat>& repeats) {
  static const MetricRange& range = RangeOf("run/time_to_accuracy_s");
  std::vector<TargetRepeat> targets;
  for (const auto& [row, times] : repeats) {
    TargetRepeat& target = targets.emplace_back();
    if (row->time_to_accuracy.has_value() && range.Contains(*row->time_to_accuracy))
      target.seconds = row->time_to_accuracy;
    if (times != nullptr) target.samples = times->samples_to_accuracy;
  }
  return MakeTimeToTarget(targets);
}

StepCell CellOf(const db::CellRow& cell, const std::vector<Repeat>& repeats) {
  StepCell steps{cell.ranks, static_cast<double>(cell.global_batch), {}};
  steps.repeats.reserve(repeats.size());
  for (const auto& [row, times] : repeats) {
    if (times == nullptr) continue;
    if (const auto parts = PartsOf(*times, row->repeat)) steps.repeats.push_back(*parts);
  }
  return steps;
}

std::vector<GradientNorms> NormsOf(const std::vector<Repeat>& repeats) {
  std::vector<GradientNorms> norms;
  norms.reserve(repeats.size());
  for (const auto& [row, times] : repeats) {
    if (times != nullptr && times->rank_norm && times->mean_norm)
      norms.push_back({*times->rank_norm, *times->mean_norm});
  }
  return norms;
}

// Returns whether any cell can have a target. If not, the specifications of the cells need not be made.
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

bool OnOneNode(const db::RunTimes& times) {
  return !times.nodes.empty() && !absl::StrContains(times.nodes, ',');
}

// Returns whether there are runs on different nodes among those that used one node. Checks this much faster than
// CompareNodes.
bool OnDifferentNodes(const std::vector<db::RunTimes>& times) {
  const auto first = std::ranges::find_if(times, OnOneNode);
  return std::any_of(first, times.end(),
                     [&](const db::RunTimes& run) { return run.nodes != first->nodes && OnOneNode(run); });
}

// Returns the runs of the series with this fingerprint that used one node, ordered by cell and repeat.
std::vector<NodeRun> RunsOnOneNode(const ExplainedRows& input, const RepeatFinder& finder,
                                   const std::vector<int>& block_of_repeat, const std::string& fingerprint,
                                   const scalelab::v1::GetCurveResponse& curve) {
  static const MetricRange& range = RangeOf("run/throughput");
  std::vector<NodeRun> runs;
  for (int s = 0; s < curve.series_size(); ++s) {
    if (curve.series(s).fingerprint() != fingerprint) continue;
    for (const size_t cell : input.places.series[s].cells) {
      for (const auto& [row, times] : finder.Succeeded(cell, fingerprint)) {
        if (times == nullptr || !OnOneNode(*times)) continue;
        if (!row->throughput.has_value() || !range.Contains(*row->throughput) || row->repeat < 0) continue;
        runs.push_back({cell, block_of_repeat[row->repeat], static_cast<double>(row->started) / 1e6,
                        *row->throughput, times->nodes});
      }
    }
  }
  return runs;
}

void AddNodeComparisons(const ExplainedRows& input, const RepeatFinder& finder,
                        scalelab::v1::GetCurveResponse& curve) {
  const std::vector<int> block_of_repeat = BlockOfRepeat(input.rows);
  absl::flat_hash_set<std::string> compared;
  for (const auto& series : curve.series()) {
    if (!compared.insert(series.fingerprint()).second) continue;
    auto comparison = CompareNodes(RunsOnOneNode(input, finder, block_of_repeat, series.fingerprint(), curve),
                                   input.places.confidence);
    if (!comparison.has_value()) continue;
    comparison->set_fingerprint(series.fingerprint());
    *curve.add_node_comparisons() = *std::move(comparison);
  }
}

}  // namespace

void AddTimesToTarget(const ExplainedRows& input, scalelab::v1::GetCurveResponse& curve) {
  if (!HasTargets(input.parameters.values())) return;
  const std::vector<db::RunTimes> no_times;
  const RepeatFinder finder(input, no_times);
  for (int s = 0; s < curve.series_size(); ++s) {
    auto& series = *curve.mutable_series(s);
    for (int p = 0; p < series.points_size(); ++p) {
      const size_t cell = input.places.series[s].cells[p];
      if (input.parameters.SpecWithoutCommand(cell).target_accuracy() <= 0) continue;
      const auto repeats = finder.Succeeded(cell, series.fingerprint());
      if (!repeats.empty()) *series.mutable_points(p)->mutable_time_to_target() = TimeOf(repeats);
    }
  }
}

void AddFactors(const ExplainedRows& input, const std::vector<db::RunTimes>& times,
                const CurveOptions& options, scalelab::v1::GetCurveResponse& curve) {
  const RepeatFinder finder(input, times);
  const CriticalValues critical(input.places.confidence);
  const bool with_targets = HasTargets(input.parameters.values());
  const auto add = [&](size_t s) {
    auto& series = *curve.mutable_series(static_cast<int>(s));
    const CurvePlaces::Series& places = input.places.series[s];
    StepCell base;
    TimeToTarget base_time;
    int base_batch = 0;
    if (places.baseline.has_value()) {
      const auto repeats = finder.Succeeded(*places.baseline, places.baseline_fingerprint);
      base = CellOf(input.cells[*places.baseline], repeats);
      base_batch = input.cells[*places.baseline].global_batch;
      if (with_targets) base_time = TimeOf(repeats);
    }
    for (int p = 0; p < series.points_size(); ++p) {
      CurvePoint& point = *series.mutable_points(p);
      const db::CellRow& cell = input.cells[places.cells[p]];
      const auto repeats = finder.Succeeded(places.cells[p], series.fingerprint());
      if (repeats.empty()) continue;
      const bool is_base =
          places.baseline == places.cells[p] && places.baseline_fingerprint == series.fingerprint();
      StepCell other;
      if (!is_base) other = CellOf(cell, repeats);
      AddFactorsOf(is_base ? base : other, base.repeats.empty() ? nullptr : &base, input.places.confidence,
                   critical, point);
      const std::vector<GradientNorms> norms = NormsOf(repeats);
      if (!norms.empty())
        *point.mutable_gradient_noise() =
            MakeGradientNoise(cell.ranks, cell.global_batch, norms,
                              point.has_throughput() ? &point.throughput() : nullptr, critical);
      if (!point.has_time_to_target()) continue;
      *point.mutable_time_to_target() = TimeOf(repeats);
      CompareConvergence(base_time, base_batch, cell.global_batch, *point.mutable_time_to_target());
      if (input.reference == nullptr) continue;
      CompareWithReference(*input.reference,
                           ReferenceTaskOf(input.parameters.SpecWithoutCommand(places.cells[p])),
                           cell.global_batch, *point.mutable_time_to_target());
    }
  };
  ForEachInParallel(static_cast<size_t>(curve.series_size()), options.ThreadsFor(input.rows.size()), add);
  if (OnDifferentNodes(times)) AddNodeComparisons(input, finder, curve);
}

}  // namespace scalelab::analysis
