// A histogram of the durations of the steps of a rank. It needs little memory.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

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
  // Returns the median in seconds, to within 1%; nothing without steps.
  std::optional<double> Median() const;

 private:
  std::map<Bucket, int64_t> counts_;
  int64_t total_ = 0;
};

}  // namespace scalelab::server
