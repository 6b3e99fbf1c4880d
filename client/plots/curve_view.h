// What both plots show of a curve: names of series, points with intervals, scales with ticks. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "scalelab/v1/result.pb.h"

namespace scalelab::client {

enum class Quantity { kThroughput, kSpeedup, kEfficiency };

struct PlotPoint {
  double ranks = 0;
  double value = 0;
  std::optional<double> low, high;  // both or none
  int n = 0;
};

// A cell that was planned and has nothing to plot.
struct LostPoint {
  double ranks = 0;
  std::string why;  // "failed", "out of memory", ...
};

struct PlotSeries {
  std::string label;
  std::string baseline;           // "812.4 samples/s on 1 rank", or that there is none
  double baseline_ranks = 0;      // 0 when there is none
  std::vector<PlotPoint> points;  // by ranks
  std::vector<LostPoint> lost;
};

// Names that tell the series apart: values of the axes in which they differ (all axes of a single one), and
// the start of the fingerprint where only hardware or software differs.
std::vector<std::string> SeriesLabels(const scalelab::v1::GetCurveResponse& curve);

// One entry a series, in their order. Speedup and efficiency only of points that have them.
std::vector<PlotSeries> SeriesOf(const scalelab::v1::GetCurveResponse& curve, Quantity quantity);

// Speedup where some series has a baseline, else throughput.
Quantity MainQuantity(const scalelab::v1::GetCurveResponse& curve);
std::string AxisTitle(Quantity quantity);
// "Strong scaling, base cases: 799.8 to 1350 samples/s on 1 rank".
std::string Subtitle(const scalelab::v1::GetCurveResponse& curve);

// A scale maps values to 0 (bottom or left) to 1.
struct Scale {
  bool log2 = false;
  double min = 0, max = 1;
  std::vector<double> ticks;
  double operator()(double value) const;
};

// The ranks of all points, lost ones included; a tick at each (powers of two when there are more than ten).
Scale RanksScale(const std::vector<PlotSeries>& series);
// Values and intervals of all points and, for a speedup, the ideal line. Speedups are on a log2 scale, on
// which ideal scaling is straight; the others start at 0.
Scale ValueScale(const std::vector<PlotSeries>& series, Quantity quantity);

// Distinct baseline ranks of series that have points: each has its own ideal speedup, ranks / baseline.
std::vector<double> Baselines(const std::vector<PlotSeries>& series);

}  // namespace scalelab::client
