#include "analysis/notes.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace scalelab::analysis {
namespace {

using scalelab::v1::CurvePoint;
using scalelab::v1::CurveSeries;

// Largest relative difference between a reported throughput and the throughput of the median step that
// causes no note.
constexpr double kThroughputTolerance = 0.10;
constexpr size_t kMostNamed = 3;

std::string Runs(size_t count) { return absl::StrCat(count, count == 1 ? " run" : " runs"); }

void AddRefused(const Point& point, CurvePoint& out) {
  const size_t without = static_cast<size_t>(point.succeeded) - point.throughput.size();
  if (point.refused.empty() && without == 0) return;
  const std::string count = without == 0 ? "" : absl::StrCat(Runs(without), " without a usable throughput");
  const std::set<std::string> reasons(point.refused.begin(), point.refused.end());
  std::vector<std::string> named(reasons.begin(), reasons.end());
  const size_t more = named.size() > kMostNamed ? named.size() - kMostNamed : 0;
  named.resize(named.size() - more);
  std::string why = absl::StrJoin(named, "; ");
  if (more > 0) absl::StrAppend(&why, "; and ", more, " more reasons");
  out.add_notes(absl::StrCat(count, count.empty() || why.empty() ? "" : ": ", why));
}

void AddNodes(const Point& point, CurvePoint& out) {
  int64_t nodes = 0;
  for (const db::CurveRow* row : point.results) {
    if (row->nodes_hash == 0) continue;
    if (nodes != 0 && row->nodes_hash != nodes) return out.add_notes("repeats ran on different nodes");
    nodes = row->nodes_hash;
  }
}

// Adds a note if a reported throughput differs from global batch / median step.
void AddClaims(const Point& point, CurvePoint& out) {
  size_t wrong = 0;
  const db::CurveRow* worst = nullptr;
  double worst_apart = 0;
  for (const db::CurveRow* row : point.results) {
    if (!row->reported_step.has_value() || point.cell->global_batch <= 0) continue;
    const double by_steps = point.cell->global_batch / *row->reported_step;
    if (std::abs(*row->throughput / by_steps - 1) <= kThroughputTolerance) continue;
    ++wrong;
    const double apart = std::abs(std::log(*row->throughput / by_steps));
    if (apart > worst_apart) worst_apart = apart, worst = row;
  }
  if (wrong == 0) return;
  out.add_notes(
      absl::StrFormat("%s reported a throughput that its steps do not have: repeat %d reported %.4g "
                      "samples/s, but its median step of %.4g s "
                      "makes %.4g samples/s",
                      Runs(wrong), worst->repeat, *worst->throughput, *worst->reported_step,
                      point.cell->global_batch / *worst->reported_step));
}

void AddOutliers(const Point& point, const std::vector<Outlier>& outliers, CurvePoint& out) {
  if (outliers.empty()) return;
  std::vector<std::string> named;
  for (size_t i = 0; i < std::min(outliers.size(), kMostNamed); ++i) {
    named.push_back(absl::StrFormat("repeat %d is %.2g%% %s", point.results[outliers[i].place]->repeat,
                                    100 * std::abs(std::expm1(outliers[i].residual)),
                                    outliers[i].residual < 0 ? "slower" : "faster"));
  }
  const bool one = outliers.size() == 1;
  const size_t more = outliers.size() - named.size();
  out.add_notes(absl::StrCat(one ? "outlier: " : "outliers: ", absl::StrJoin(named, ", "),
                             more > 0 ? absl::StrCat(" and ", more, " more") : "",
                             " than the other repeats suggest; ", one ? "it is" : "they are", " used"));
}

void AddConcurrency(const std::vector<const Point*>& points, CurveSeries& series) {
  std::vector<double> concurrent;
  int most = 0;
  for (const Point* point : points) {
    concurrent.insert(concurrent.end(), point->concurrent.begin(), point->concurrent.end());
    most = std::max(most, point->most_concurrent);
  }
  if (most <= 1) return;
  series.add_notes(
      absl::StrFormat("up to %d runs of the service ran at the same time as these, on average %.1f, "
                      "themselves included; runs that share "
                      "a network or a disk disturb each other",
                      most, Mean(concurrent)));
}

void SetNoiseFloor(const std::vector<const Point*>& points, CellRatios& ratios, CurveSeries& series) {
  std::vector<double> repeats;
  for (const Point* point : points) {
    if (point->throughput.size() > 0) repeats.push_back(static_cast<double>(point->throughput.size()));
  }
  if (repeats.size() > 1) series.set_noise_floor(ratios.NoiseFloor(Median(std::move(repeats))));
}

}  // namespace

void AddPointNotes(const Point& point, int common, bool own_baseline, const std::vector<Outlier>& outliers,
                   CurvePoint& out) {
  AddRefused(point, out);
  if (point.retried > 0)
    out.add_notes(
        absl::StrCat(Runs(static_cast<size_t>(point.retried)), " succeeded only after a failed attempt"));
  if (point.rerun > 0)
    out.add_notes(absl::StrCat(Runs(static_cast<size_t>(point.rerun)), point.rerun == 1 ? " was" : " were",
                               " repeated because ", point.rerun_attempts,
                               point.rerun_attempts == 1 ? " attempt was" : " attempts were",
                               " disturbed by other load on the nodes; `scalelab run show` has their "
                               "throughput"));
  if (point.continued > 0)
    out.add_notes(absl::StrCat(Runs(static_cast<size_t>(point.continued)),
                               " continued from a checkpoint after a time limit or a preemption"));
  if (point.noisy > 0)
    out.add_notes(absl::StrCat(Runs(static_cast<size_t>(point.noisy)), point.noisy == 1 ? " was" : " were",
                               " disturbed by other load on the nodes, and ", point.noisy == 1 ? "is" : "are",
                               " used; `scalelab run show` has the reasons"));
  AddNodes(point, out);
  AddClaims(point, out);
  AddOutliers(point, outliers, out);
  if (own_baseline && out.efficiency().has_low() && out.efficiency().low() > 1)
    out.add_notes(
        "efficiency above 1: the smaller world size may lack memory or cache, or the base case is disturbed");
  const int n = static_cast<int>(point.throughput.size());
  if (common >= 0 && common < n)
    out.add_notes(common == 0
                      ? absl::StrCat("shares no repeat with the base case; other cells connect them")
                      : absl::StrCat("shares only ", common, " of its ", n, " repeats with the base case"));
}

void AddSeriesNotes(const std::vector<const Point*>& points, bool listed, bool single, CellRatios& ratios,
                    CurveSeries& series) {
  AddConcurrency(points, series);
  if (single) series.add_notes("single repeats have no interval; ask for 5 repeats or more");
  const auto has_results = [](const Point* point) { return point->throughput.size() > 0; };
  if (listed && std::ranges::count_if(points, has_results) > 1) {
    series.set_listed_order(true);
    series.add_notes(
        "the runs were made in the order of the study file, so speedups include every change of the machine "
        "over time; "
        "use order: randomized");
  }
  SetNoiseFloor(points, ratios, series);
}

}  // namespace scalelab::analysis
