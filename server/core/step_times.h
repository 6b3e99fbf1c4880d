// A histogram of the durations of the steps of a rank. It needs little memory.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace scalelab::server {

class StepTimes {
 public:
  using Bucket = int16_t;
  // Returns the bucket of a duration in seconds; nothing unless it is between a nanosecond and 30 years.
  // Durations in the same bucket differ by at most 1%.
  static std::optional<Bucket> BucketOf(double seconds);

  void Add(Bucket bucket) {
    ++counts_[bucket];
    ++total_;
  }
  // Records that the durations of some steps are not known.
  void Miss() { complete_ = false; }
  // Returns the median in seconds, to within 1%; nothing without steps, or if some of them are not known.
  std::optional<double> Median() const;

 private:
  std::map<Bucket, int64_t> counts_;
  int64_t total_ = 0;
  bool complete_ = true;
};

// The numbers of steps, and their durations.
using NumberedSteps = std::vector<std::pair<int64_t, StepTimes::Bucket>>;

// Returns `step` + `more`, or the largest number if the sum is larger: programs may report any number as
// their step. `more` must not be negative.
inline int64_t AddToStep(int64_t step, int64_t more) {
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  return step > kLargest - more ? kLargest : step + more;
}

// Returns the steps whose durations have a bucket. `seconds` has a duration for each of `numbers`.
NumberedSteps StepsOf(absl::Span<const int64_t> numbers, absl::Span<const double> seconds);

}  // namespace scalelab::server
