#include "worker/power/power_history.h"

#include <algorithm>
#include <cmath>

namespace scalelab::worker {
namespace {

constexpr size_t kMostReadings = 8192;  // 13 minutes of readings, before older ones are thinned out
// The last reading may be earlier than the end of a span by at most this time. Later readings usually exist,
// because the end of a span is read from a file after it happened.
constexpr double kMostMissing = 1;  // s

}  // namespace

void PowerHistory::Add(const PowerReading& reading) {
  const std::lock_guard lock(mutex_);
  Reading kept{reading.time, {}};
  if (!readings_.empty()) {
    const Reading& before = readings_.back();
    const double seconds = reading.time - before.time;
    if (!(seconds > 0)) return;
    kept.sums = before.sums;
    for (int q = kJoules + 1; q < kPowerQuantities; ++q)
      kept.sums[q] += (last_[q] + reading.values[q]) / 2 * seconds;
    const double joules = reading.values[kJoules] - last_[kJoules];
    kept.sums[kJoules] += joules >= 0 ? joules : std::nan("");
  }
  last_ = reading.values;
  peak_memory_ = std::isnan(peak_memory_) || std::isnan(reading.memory_bytes)
                     ? std::nan("")
                     : std::max(peak_memory_, reading.memory_bytes);
  readings_.push_back(kept);
  if (readings_.size() > kMostReadings) Thin();
}

// Leaves out every second reading of the older half.
void PowerHistory::Thin() {
  size_t kept = 0;
  for (size_t i = 0; i < readings_.size(); ++i) {
    if (i < readings_.size() / 2 && i % 2 == 1) continue;
    readings_[kept++] = readings_[i];
  }
  readings_.resize(kept);
}

// Returns the integrals at `time`, by linear interpolation between the two readings around it, or
// extrapolation from the two readings before it.
PowerValues PowerHistory::At(double time) const {
  if (readings_.size() < 2 || !(time >= readings_.front().time) ||
      time > readings_.back().time + kMostMissing)
    return UnknownPower();
  auto after = std::ranges::upper_bound(readings_, time, {}, &Reading::time);
  if (after == readings_.begin()) ++after;
  if (after == readings_.end()) --after;
  const Reading& before = *(after - 1);
  const double share = (time - before.time) / (after->time - before.time);
  PowerValues sums;
  for (int q = 0; q < kPowerQuantities; ++q)
    sums[q] = before.sums[q] + share * (after->sums[q] - before.sums[q]);
  return sums;
}

PowerValues PowerHistory::Between(double begin, double end) const {
  const std::lock_guard lock(mutex_);
  const PowerValues from = At(begin);
  PowerValues change = At(end);
  for (int q = 0; q < kPowerQuantities; ++q) change[q] -= from[q];
  return change;
}

double PowerHistory::begin() const {
  const std::lock_guard lock(mutex_);
  return readings_.empty() ? std::nan("") : readings_.front().time;
}

double PowerHistory::peak_memory() const {
  const std::lock_guard lock(mutex_);
  return readings_.empty() ? std::nan("") : peak_memory_;
}

}  // namespace scalelab::worker
