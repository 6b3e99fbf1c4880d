#include "worker/trainer/strategies/bucket_times.h"

#include <algorithm>
#include <utility>

#include "worker/trainer/metrics/run_meter.h"

namespace scalelab::trainer {

void BucketTimes::Begin(at::Device device) {
  recording_ = !current_.has_value() || Measure();
  if (!recording_) return;
  current_.emplace();
  current_->begin = DeviceEvent(device);
}

void BucketTimes::Ready(at::Device device) {
  if (recording_) current_->ready.emplace_back(device);
}

void BucketTimes::Started(int64_t bytes) {
  if (recording_) current_->bytes.push_back(bytes);
}

void BucketTimes::Computed(at::Device device) {
  if (recording_) current_->computed = DeviceEvent(device);
}

void BucketTimes::End(std::vector<Span> spans) {
  if (!std::exchange(recording_, false)) return;
  current_->spans = std::move(spans);
  Measure();
}

void BucketTimes::Discard() {
  if (std::exchange(recording_, false)) current_.reset();
}

bool BucketTimes::Measure() {
  const Step& step = *current_;
  const auto over = [](const Span& span) { return span.end == nullptr || span.end->Over(); };
  if (!step.computed.Over() || !std::ranges::all_of(step.ready, &DeviceEvent::Over) ||
      !std::ranges::all_of(step.spans, over))
    return false;
  Seconds seconds;
  seconds.backward = step.computed.SecondsSince(step.begin);
  for (const DeviceEvent& ready : step.ready) seconds.ready.push_back(ready.SecondsSince(step.begin));
  for (const Span& span : step.spans) {
    seconds.reduce.push_back(span.end == nullptr ? -1 : span.end->SecondsSince(*span.begin));
  }
  // The buckets are rebuilt after the first step, so discard the times of the old buckets.
  if (bytes_ != step.bytes) measured_.clear();
  bytes_ = step.bytes;
  measured_.push_back(std::move(seconds));
  if (measured_.size() > kSteps) measured_.pop_front();
  current_.reset();
  return true;
}

void BucketTimes::AppendTo(std::vector<Metric>& metrics) const {
  if (measured_.empty() || bytes_.empty() || bytes_.size() > kMostBuckets) return;
  std::vector<std::pair<std::string, double>> named;
  std::vector<double> backward;
  for (const Seconds& step : measured_) backward.push_back(step.backward);
  named.emplace_back("bucket/backward_s", Median(backward));
  for (size_t i = 0; i < bytes_.size(); ++i) {
    const std::string bucket = "bucket/" + std::to_string(i);
    std::vector<double> ready, reduce;
    for (const Seconds& step : measured_) {
      ready.push_back(step.ready[i]);
      reduce.push_back(step.reduce[i]);
    }
    named.emplace_back(bucket + "/bytes", static_cast<double>(bytes_[i]));
    named.emplace_back(bucket + "/ready_s", Median(ready));
    const double shortest = *std::ranges::min_element(reduce);
    if (shortest >= 0) named.emplace_back(bucket + "/reduce_s", shortest);
  }
  names_.clear();
  names_.reserve(named.size());
  for (auto& [name, value] : named) metrics.emplace_back(names_.emplace_back(std::move(name)), value);
}

}  // namespace scalelab::trainer
