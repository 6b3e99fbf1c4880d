// Measures when buckets of gradients are ready within backward, and the durations of their all-reduces. The
// model "replay" of predictions uses these times (server/prediction/bucket_replay.h).
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "worker/trainer/device/device_event.h"
#include "worker/trainer/metrics/event_writer.h"

namespace scalelab::trainer {

// Stores the times of the last steps. Never waits for the device: a step is not measured if the device has
// not completed an earlier one.
class BucketTimes {
 public:
  // Must be called when backward begins.
  void Begin(at::Device device);
  // Ready must be called when the gradients of the next bucket are complete, and Started when `bytes` of this
  // bucket were passed to the communicator.
  void Ready(at::Device device);
  void Started(int64_t bytes);
  // Must be called after backward.
  void Computed(at::Device device);
  // Must be called after the last all-reduce. `spans` are the times of the all-reduces in the order of the
  // buckets. A time that is not known is null.
  void End(std::vector<Span> spans);
  // Discards the times of the current step.
  void Discard();

  // Appends bucket/backward_s and, for each bucket N, counted from 0, bucket/N/bytes, bucket/N/ready_s and
  // bucket/N/reduce_s. backward_s and ready_s are medians of the last steps. reduce_s is the minimum,
  // which contains the least waiting time for other ranks; it is absent if it is not known. Appends
  // nothing if no step was measured, or if there are more than kMostBuckets buckets. The metrics refer to
  // names in this object.
  void AppendTo(std::vector<Metric>& metrics) const;

  static constexpr size_t kMostBuckets = 64, kSteps = 16;

 private:
  struct Step {
    DeviceEvent begin, computed;
    std::vector<DeviceEvent> ready;
    std::vector<int64_t> bytes;
    std::vector<Span> spans;
  };
  struct Seconds {
    double backward = 0;
    std::vector<double> ready, reduce;  // by bucket; `reduce` is negative if it is not known
  };

  bool Measure();  // moves current_ to measured_ if the device has completed it; returns whether it has

  std::optional<Step> current_;
  bool recording_ = false;        // from Begin to End
  std::vector<int64_t> bytes_;    // sizes of the buckets in measured_
  std::deque<Seconds> measured_;  // times of the last kSteps steps
  mutable std::vector<std::string> names_;
};

}  // namespace scalelab::trainer
