#include "analysis/factors/time_to_target.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace scalelab::analysis {
namespace {

constexpr size_t kFewestRepeats = 3;
// A smaller ratio of samples cannot be explained by noise.
constexpr double kSuspicious = 0.9;

// Returns the mean of WithoutExtremes; nothing if that is empty.
std::optional<double> OlympicMean(const std::vector<std::optional<double>>& values) {
  const std::vector<double> kept = WithoutExtremes(values);
  if (kept.empty()) return std::nullopt;
  return std::accumulate(kept.begin(), kept.end(), 0.0) / static_cast<double>(kept.size());
}

}  // namespace

std::vector<double> WithoutExtremes(const std::vector<std::optional<double>>& values) {
  if (values.size() < kFewestRepeats) return {};
  std::vector<double> known;
  for (const std::optional<double>& value : values) {
    if (value.has_value()) known.push_back(*value);
  }
  if (known.size() + 1 < values.size()) return {};
  std::ranges::sort(known);
  known.resize(values.size() - 1);  // without the largest, unless it is absent
  known.erase(known.begin());
  return known;
}

scalelab::v1::TimeToTarget MakeTimeToTarget(const std::vector<TargetRepeat>& repeats) {
  scalelab::v1::TimeToTarget result;
  std::vector<std::optional<double>> seconds, samples;
  bool samples_known = true;
  for (const TargetRepeat& repeat : repeats) {
    seconds.push_back(repeat.seconds);
    samples.push_back(repeat.seconds.has_value() ? repeat.samples : std::nullopt);
    samples_known = samples_known && (!repeat.seconds.has_value() || repeat.samples.has_value());
    if (repeat.seconds.has_value()) result.set_reached(result.reached() + 1);
  }
  result.set_n(static_cast<int>(repeats.size()));
  if (const auto mean = OlympicMean(seconds)) {
    result.set_seconds(*mean);
  } else if (repeats.size() < kFewestRepeats) {
    result.set_note(absl::StrCat("the rules of MLPerf need at least ", kFewestRepeats, " repeats, and ",
                                 repeats.size(),
                                 repeats.size() == 1 ? " succeeded" : " succeeded with a target"));
  } else {
    result.set_note(absl::StrCat(result.n() - result.reached(), " of ", result.n(),
                                 " repeats did not reach the target; only one may be left out"));
  }
  if (const auto mean = samples_known ? OlympicMean(samples) : std::nullopt) result.set_samples(*mean);
  return result;
}

void CompareConvergence(const scalelab::v1::TimeToTarget& base, int base_batch, int batch,
                        scalelab::v1::TimeToTarget& point) {
  if (!base.has_samples() || !point.has_samples()) return;
  const double ratio = point.samples() / base.samples();
  point.set_samples_ratio(ratio);
  if (ratio >= kSuspicious || batch < base_batch) return;
  point.set_note(
      absl::StrFormat("the target is reached with %.2g times the samples of the base case; a larger batch "
                      "cannot converge faster, so the two do not train alike",
                      ratio));
}

}  // namespace scalelab::analysis
