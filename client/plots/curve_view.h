// The parts of a curve that both plots show: names of series, points with intervals, scales with
// ticks. Pure functions.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "scalelab/v1/result.pb.h"

namespace scalelab::client {

// The quantity on the vertical axis of a panel; the horizontal axis is the number of ranks.
enum class Quantity { kThroughput, kSpeedup, kEfficiency, kMemory, kCommunication, kAccuracy, kGoodput };

// The names of the quantities on the command line, in the order of the enum.
inline constexpr std::array<absl::string_view, 7> kQuantityNames = {
    "throughput", "speedup", "efficiency", "memory", "comm", "accuracy", "goodput"};

struct PlotPoint {
  double ranks = 0;
  double value = 0;
  std::optional<double> low, high;  // both are set, or none
  int n = 0;
  int asked = 0;  // repeats that the study asks for; 0: not known
};

// A planned cell without a result to plot.
struct LostPoint {
  double ranks = 0;
  std::string why;  // "failed", "out of memory", ...
  int asked = 0;    // as in PlotPoint
};

struct PlotSeries {
  std::string label;
  std::string baseline;           // "812.4 samples/s on 1 rank", or "no base case"
  double baseline_ranks = 0;      // 0 when there is none
  std::vector<PlotPoint> points;  // by ranks
  std::vector<LostPoint> lost;
};

// Returns names that distinguish the series: the values of the axes in which they differ (all axes if there
// is only one series), and a prefix of the fingerprint where only hardware or software differs.
std::vector<std::string> SeriesLabels(const scalelab::v1::GetCurveResponse& curve);

// Returns the same names with warnings: "native/ddp (listed order)", "native/ddp (trains differently)".
std::vector<std::string> MarkedLabels(const scalelab::v1::GetCurveResponse& curve);

// Returns how many values the points use, of the repeats that the study asks for: the most frequent numbers,
// and the points with other numbers. Ignores points that are pending or excluded. Empty if there are no
// others.
std::string RepeatsNote(const scalelab::v1::GetCurveResponse& curve);

// Returns the notes on all series and points, each once, with the series and ranks that it belongs to:
// "native/ddp, 2 and 4 ranks: repeats ran on different nodes". If more than three notes differ only in their
// numbers, returns the first three of them and the number of the others.
std::vector<std::string> CurveNotes(const scalelab::v1::GetCurveResponse& curve);

// Returns the quantity of a point; null if it has none.
const scalelab::v1::Estimate* EstimateOf(const scalelab::v1::CurvePoint& point, Quantity quantity);

// Returns one entry per series, in their order, with the points that have the quantity.
std::vector<PlotSeries> SeriesOf(const scalelab::v1::GetCurveResponse& curve, Quantity quantity);

// Returns speedup if any series has a baseline, else throughput.
Quantity MainQuantity(const scalelab::v1::GetCurveResponse& curve);
// Returns what a picture shows by default: speedup and efficiency, or throughput alone if no series has a baseline.
std::vector<Quantity> UsualPanels(const scalelab::v1::GetCurveResponse& curve);
std::string AxisTitle(Quantity quantity);
// Returns the factor that converts a value to the unit of AxisTitle: 100 for a percentage.
double AxisUnit(Quantity quantity);
// Returns for example "Strong scaling, base cases: 799.8 to 1350 samples/s on 1 rank".
std::string Subtitle(const scalelab::v1::GetCurveResponse& curve);

// A scale maps values to the range from 0 (bottom or left) to 1.
struct Scale {
  bool log2 = false;
  double min = 0, max = 1;
  std::vector<double> ticks;
  double operator()(double value) const;
};

// Returns a scale for the ranks of all points, including points without a result. It has a tick at each rank
// count, or at powers of two if there are more than ten.
Scale RanksScale(const std::vector<PlotSeries>& series);
// Returns a scale for the values and intervals of all points and, for a speedup, for the ideal line. Speedups
// use a log2 scale, on which ideal scaling is a straight line; the other quantities start at 0. The scale ends before the
// end of an interval that is many times as large as the values, because the values would then be too small to see.
Scale ValueScale(const std::vector<PlotSeries>& series, Quantity quantity);

// Returns the distinct baseline ranks of all series that have points. Each has its own ideal speedup,
// ranks / baseline.
std::vector<double> Baselines(const std::vector<PlotSeries>& series);

}  // namespace scalelab::client
