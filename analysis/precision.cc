#include "analysis/precision.h"

#include <algorithm>
#include <cmath>

#include "analysis/sample.h"

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

std::optional<double> SequentialConfidenceOf(const v1::StudySpec& spec, const std::vector<db::CellRow>& cells,
                                             const CellList& parameters,
                                             const std::vector<db::CurveRow>& rows) {
  if (!spec.has_adaptive_repeats()) return std::nullopt;
  size_t with_intervals = 0;
  for (size_t i = 0; i < cells.size(); ++i) {
    if (cells[i].excluded || parameters.SpecWithoutCommand(i).communication_baseline()) continue;
    ++with_intervals;
  }
  return SequentialConfidence(spec.adaptive_repeats(), with_intervals,
                              BlocksWithResults(BlockOfRepeat(rows)));
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
