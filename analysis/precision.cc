#include "analysis/precision.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace scalelab::analysis {
namespace {

// Returns the relative half width r of an interval [x / (1 + r), x * (1 + r)].
double HalfWidth(const v1::Estimate& estimate) {
  if (!estimate.has_low() || !(estimate.low() > 0)) return HUGE_VAL;
  return std::sqrt(estimate.high() / estimate.low()) - 1;
}

// Returns whether the point is the base case itself, whose speedup is 1.
bool IsBase(const v1::Estimate& speedup) { return speedup.has_stddev() && speedup.low() == speedup.high(); }

}  // namespace

double SequentialConfidence(const v1::AdaptiveRepeats& repeats, size_t cells, int blocks) {
  const int first_look = std::max(2, repeats.min());
  if (cells > 2 || blocks <= first_look) return 0.965;
  if (first_look == 2) return 0.98;
  return first_look == 3 ? 0.975 : 0.97;
}

int BlocksWithResults(const std::vector<db::CurveRow>& rows) {
  std::set<int> blocks;
  for (const db::CurveRow& row : rows) {
    if (row.state == db::RunState::kSucceeded && row.repeat >= 0) blocks.insert(row.repeat);
  }
  return static_cast<int>(blocks.size());
}

std::optional<double> WidestHalfWidth(const v1::GetCurveResponse& curve) {
  std::optional<double> of_ratios, of_means;
  for (const v1::CurveSeries& series : curve.series()) {
    for (const v1::CurvePoint& point : series.points()) {
      if (point.n() == 0) continue;
      of_means = std::max(of_means.value_or(0), HalfWidth(point.throughput()));
      if (series.baseline_ranks() == 0 || IsBase(point.speedup())) continue;
      // Without a common block with the base case there is no speedup yet.
      const double of_point = point.has_speedup() ? HalfWidth(point.speedup()) : HUGE_VAL;
      of_ratios = std::max(of_ratios.value_or(0), of_point);
    }
  }
  return of_ratios.has_value() ? of_ratios : of_means;
}

}  // namespace scalelab::analysis
