// When buckets of gradients were ready within backward, and how long their all-reduces took: the input of the model "replay" of
// predictions (server/prediction/bucket_replay.h).
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "worker/trainer/device/moment.h"
#include "worker/trainer/metrics/event_writer.h"

namespace scalelab::trainer {

// Keeps the times of the last steps. It never waits for the device: a step is skipped while an earlier one is not over.
class BucketTimes {
 public:
  // Called when backward begins.
  void Begin(at::Device device);
  // Called when the gradients of the next bucket are complete, and when `bytes` of it were passed to the communicator.
  void Ready(at::Device device);
  void Started(int64_t bytes);
  // Called after backward.
  void Computed(at::Device device);
  // Called after the last all-reduce. `spans`: the all-reduces in the order of the buckets; null moments where they are not known.
  void End(std::vector<Span> spans);
  // Forgets the step that has begun.
  void Discard();

  // Appends bucket/backward_s, and for each bucket from 0 bucket/N/bytes, bucket/N/ready_s (both medians of the last steps) and
  // bucket/N/reduce_s (the shortest, which waited least for other ranks; absent if it is not known). Appends nothing if no step
  // was measured, or for more than kMostBuckets buckets. The metrics refer to names in this object.
  void AppendTo(std::vector<Metric>& metrics) const;

  static constexpr size_t kMostBuckets = 64, kSteps = 16;

 private:
  struct Step {
    Moment begin, computed;
    std::vector<Moment> ready;
    std::vector<int64_t> bytes;
    std::vector<Span> spans;
  };
  struct Seconds {
    double backward = 0;
    std::vector<double> ready, reduce;  // by bucket; reduce is below 0 if it is not known
  };

  bool Measure();  // moves current_ to measured_ if it is over; returns whether it was

  std::optional<Step> current_;
  bool recording_ = false;        // from Begin to End
  std::vector<int64_t> bytes_;    // of the buckets of measured_
  std::deque<Seconds> measured_;  // of the last kSteps steps
  mutable std::vector<std::string> names_;
};

}  // namespace scalelab::trainer
