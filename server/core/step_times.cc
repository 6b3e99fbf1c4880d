#include "server/core/step_times.h"

#include <cmath>

namespace scalelab::server {
namespace {

constexpr double kWidth = 0.01;  // width of a bucket in the natural logarithm of the duration

}  // namespace

std::optional<StepTimes::Bucket> StepTimes::BucketOf(double seconds) {
  if (!(seconds >= 1e-9 && seconds <= 1e9)) return std::nullopt;
  return static_cast<Bucket>(std::lround(std::log(seconds) / kWidth));
}

std::optional<double> StepTimes::Median() const {
  if (!complete_) return std::nullopt;
  int64_t below = 0;
  for (const auto& [bucket, count] : counts_) {
    below += count;
    if (2 * below >= total_) return std::exp(bucket * kWidth);
  }
  return std::nullopt;
}

NumberedSteps StepsOf(absl::Span<const int64_t> numbers, absl::Span<const double> seconds) {
  NumberedSteps steps;
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (const auto bucket = StepTimes::BucketOf(seconds[i])) steps.emplace_back(numbers[i], *bucket);
  }
  return steps;
}

}  // namespace scalelab::server
