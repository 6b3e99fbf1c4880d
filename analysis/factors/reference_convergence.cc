#include "analysis/factors/reference_convergence.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "analysis/distributions.h"
#include "analysis/factors/time_to_target.h"
#include "catalog/metric_ranges.h"

namespace scalelab::analysis {
namespace {

constexpr double kLevel = 0.05;  // of the one-sided test, as in the RCP checker
constexpr size_t kFewest =
    2;  // values of a reference point that are left without the smallest and the largest

// The samples that the reference needs with one batch.
struct ReferencePoint {
  double batch = 0;
  double mean = 0, deviation = 0;
  double n = 0;      // values
  double limit = 0;  // if the mean of the compared point is below this, it is significantly smaller
};

// Returns the smallest mean of `n` values that a one-sided t test does not distinguish from the reference. Both
// have the deviation of the reference.
double LimitOf(const ReferencePoint& point, double n) {
  if (point.deviation == 0) return point.mean;
  const double t = StudentQuantile(1 - kLevel, point.n + n - 2);
  return std::max(0.0, point.mean - t * point.deviation * std::sqrt(1 / point.n + 1 / n));
}

ReferencePoint Interpolated(const ReferencePoint& low, const ReferencePoint& high, double batch, double n) {
  const double share = (batch - low.batch) / (high.batch - low.batch);
  ReferencePoint point{batch, std::lerp(low.mean, high.mean, share),
                       std::lerp(low.deviation, high.deviation, share), std::min(low.n, high.n)};
  point.limit = LimitOf(point, n);
  return point;
}

std::vector<ReferencePoint> PointsOf(const SamplesByBatch& samples, double n) {
  std::vector<ReferencePoint> points;
  for (const auto& [batch, repeats] : samples) {
    const std::vector<double> kept = WithoutExtremes(repeats);
    if (kept.size() < kFewest) continue;
    ReferencePoint& point = points.emplace_back();
    point.batch = batch;
    point.n = static_cast<double>(kept.size());
    point.mean = std::accumulate(kept.begin(), kept.end(), 0.0) / point.n;
    double squares = 0;
    for (const double value : kept) squares += (value - point.mean) * (value - point.mean);
    point.deviation = std::sqrt(squares / point.n);  // with this divisor in the RCP checker, too
    point.limit = LimitOf(point, n);
  }
  return points;
}

// Removes the points that would make the reference slower: those with a smaller batch than the fastest point, and
// those above the line through their neighbours.
void Prune(double n, std::vector<ReferencePoint>& points) {
  points.erase(points.begin(), std::ranges::min_element(points, {}, &ReferencePoint::limit));
  for (size_t i = 1; i + 1 < points.size();) {
    if (points[i].limit > Interpolated(points[i - 1], points[i + 1], points[i].batch, n).limit) {
      points.erase(points.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
}

// Returns the reference for this batch: a point, or an interpolation. Below all batches, it is that of the smallest
// batch. Returns nothing above all batches.
std::optional<ReferencePoint> PointFor(const std::vector<ReferencePoint>& points, double batch, double n) {
  const auto next = std::ranges::lower_bound(points, batch, {}, &ReferencePoint::batch);
  if (next == points.end()) return std::nullopt;
  if (next == points.begin() || next->batch == batch) return *next;
  return Interpolated(*std::prev(next), *next, batch, n);
}

// Adds why there is no comparison with the reference, and keeps the note on the base case.
void AddNote(const std::string& why, scalelab::v1::TimeToTarget& point) {
  point.set_note(point.note().empty() ? why : absl::StrCat(point.note(), "; ", why));
}

}  // namespace

ReferenceTask ReferenceTaskOf(const scalelab::v1::RunSpec& spec) {
  return {spec.model(), spec.dataset(), spec.target_accuracy()};
}

ReferenceRuns ReferenceOf(const std::string& study, const std::vector<db::CellRow>& cells,
                          const CellList& parameters, const std::vector<db::CurveRow>& rows,
                          const std::vector<db::RunTimes>& times) {
  static const MetricRange& range = RangeOf("run/time_to_accuracy_s");
  absl::flat_hash_map<int64_t, size_t> index;
  for (size_t i = 0; i < cells.size(); ++i) index[cells[i].id] = i;
  ReferenceRuns reference{study, {}};
  int64_t last_cell = -1;  // rows are sorted by cell
  scalelab::v1::RunSpec spec;
  for (const db::CurveRow& row : rows) {
    const auto cell = index.find(row.cell_id);
    if (cell == index.end() || row.state != db::RunState::kSucceeded) continue;
    if (row.cell_id != last_cell) spec = parameters.SpecWithoutCommand(cell->second);
    last_cell = row.cell_id;
    if (spec.target_accuracy() <= 0) continue;
    const bool reached = row.time_to_accuracy.has_value() && range.Contains(*row.time_to_accuracy);
    const auto of_run = std::ranges::lower_bound(times, row.run_id, {}, &db::RunTimes::run_id);
    std::optional<double> samples;
    if (reached && of_run != times.end() && of_run->run_id == row.run_id &&
        of_run->attempt_id == row.attempt_id)
      samples = of_run->samples_to_accuracy;
    if (reached && !samples.has_value()) continue;
    reference.samples[ReferenceTaskOf(spec)][static_cast<double>(cells[cell->second].global_batch)].push_back(
        samples);
  }
  return reference;
}

void CompareWithReference(const ReferenceRuns& reference, const ReferenceTask& task, int global_batch,
                          scalelab::v1::TimeToTarget& point) {
  if (!point.has_samples()) {
    if (point.has_seconds())
      point.set_note(
          "the samples until the target are not known, so they cannot be compared with a reference");
    return;
  }
  const double n = point.n() - 2;
  const auto of_task = reference.samples.find(task);
  std::vector<ReferencePoint> points;
  if (of_task != reference.samples.end()) points = PointsOf(of_task->second, n);
  if (points.empty()) {
    AddNote(
        absl::StrCat("the reference ", reference.study,
                     " has no batch with at least 4 repeats of this model, data set and target, of which at "
                     "most one did not reach it; add repeats to it, or name another study"),
        point);
    return;
  }
  const bool smaller = global_batch < points.front().batch;  // such a batch may need fewer samples
  Prune(n, points);
  const std::optional<ReferencePoint> found = PointFor(points, global_batch, n);
  if (!found.has_value()) {
    AddNote(absl::StrCat("the reference ", reference.study, " has no batch of ", global_batch,
                         " or more; add repeats with this batch to it"),
            point);
    return;
  }
  if (smaller && point.samples() < found->limit) {
    AddNote(absl::StrCat("the reference ", reference.study, " has no batch of ", global_batch,
                         " or less; add repeats with this batch to it"),
            point);
    return;
  }
  point.clear_note();
  point.set_reference_samples(found->mean);
  point.set_reference_limit(found->limit);
  if (point.samples() < found->limit) {
    point.set_note(absl::StrFormat(
        "converges faster than the reference %s: %.6g samples instead of %.6g (its noise explains "
        "a mean down to %.6g); check that both train alike, because their times cannot be compared",
        reference.study, point.samples(), found->mean, found->limit));
    return;
  }
  const double factor = std::max(1.0, found->mean / point.samples());
  if (point.has_seconds()) point.set_normalised_seconds(factor * point.seconds());
  if (factor > 1)
    point.set_note(absl::StrFormat(
        "converges faster than the reference %s, within its noise; multiplied by %.4g, the time is %.4g s",
        reference.study, factor, factor * point.seconds()));
}

}  // namespace scalelab::analysis
