#include "server/analysis/factors/time_to_target.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace scalelab::server {
namespace {

constexpr size_t kFewestRepeats = 3;
// A smaller ratio of samples cannot be explained by noise.
constexpr double kSuspicious = 0.9;

// Returns the mean without the smallest and the largest value. A value that is absent is larger than all others; nothing if
// one of them would be part of the mean.
std::optional<double> OlympicMean(std::vector<std::optional<double>> values) {
  if (values.size() < kFewestRepeats) return std::nullopt;
  std::vector<double> known;
  for (const std::optional<double>& value : values) {
    if (value.has_value()) known.push_back(*value);
  }
  if (known.size() + 1 < values.size()) return std::nullopt;
  std::ranges::sort(known);
  const auto end = known.begin() + static_cast<std::ptrdiff_t>(values.size()) - 1;
  return std::accumulate(known.begin() + 1, end, 0.0) / static_cast<double>(values.size() - 2);
}

}  // namespace

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
  if (const auto mean = OlympicMean(std::move(seconds))) {
    result.set_seconds(*mean);
  } else if (repeats.size() < kFewestRepeats) {
    result.set_note(absl::StrCat("the rules of MLPerf need at least ", kFewestRepeats, " repeats, and ",
                                 repeats.size(),
                                 repeats.size() == 1 ? " succeeded" : " succeeded with a target"));
  } else {
    result.set_note(absl::StrCat(result.n() - result.reached(), " of ", result.n(),
                                 " repeats did not reach the target; only one may be left out"));
  }
  if (const auto mean = samples_known ? OlympicMean(std::move(samples)) : std::nullopt)
    result.set_samples(*mean);
  return result;
}

void CompareConvergence(const scalelab::v1::TimeToTarget& base, scalelab::v1::TimeToTarget& point) {
  if (!base.has_samples() || !point.has_samples()) return;
  const double ratio = point.samples() / base.samples();
  point.set_samples_ratio(ratio);
  if (ratio >= kSuspicious) return;
  point.set_note(
      absl::StrFormat("the target is reached with %.2g times the samples of the base case; a larger batch "
                      "cannot converge faster, so the two do not train alike",
                      ratio));
}

}  // namespace scalelab::server
