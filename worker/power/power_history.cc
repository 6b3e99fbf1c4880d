#include "worker/power/power_history.h"

#include <algorithm>
#include <cmath>

namespace scalelab::worker {
namespace {

constexpr size_t kMostMoments = 8192;  // 13 minutes before the first are left out
// Readings continue while the end of a span is read from a file, so that its last reading may be a little older.
constexpr double kMostMissing = 1;  // s

}  // namespace

void PowerHistory::Add(const PowerReading& reading) {
  const std::lock_guard lock(mutex_);
  Moment moment{reading.time, {}};
  if (!moments_.empty()) {
    const Moment& before = moments_.back();
    const double seconds = reading.time - before.time;
    if (!(seconds > 0)) return;
    moment.sums = before.sums;
    for (int q = kJoules + 1; q < kPowerQuantities; ++q)
      moment.sums[q] += (last_[q] + reading.values[q]) / 2 * seconds;
    const double joules = reading.values[kJoules] - last_[kJoules];
    moment.sums[kJoules] += joules >= 0 ? joules : std::nan("");
  }
  last_ = reading.values;
  peak_memory_ = std::isnan(peak_memory_) || std::isnan(reading.memory_bytes)
                     ? std::nan("")
                     : std::max(peak_memory_, reading.memory_bytes);
  moments_.push_back(moment);
  if (moments_.size() > kMostMoments) Thin();
}

// Leaves out every second moment of the older half.
void PowerHistory::Thin() {
  size_t kept = 0;
  for (size_t i = 0; i < moments_.size(); ++i) {
    if (i < moments_.size() / 2 && i % 2 == 1) continue;
    moments_[kept++] = moments_[i];
  }
  moments_.resize(kept);
}

// Returns the integrals at `time`, on the line through the two moments around it or before it.
PowerValues PowerHistory::At(double time) const {
  if (moments_.size() < 2 || !(time >= moments_.front().time) || time > moments_.back().time + kMostMissing)
    return UnknownPower();
  auto after = std::ranges::upper_bound(moments_, time, {}, &Moment::time);
  if (after == moments_.begin()) ++after;
  if (after == moments_.end()) --after;
  const Moment& before = *(after - 1);
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
  return moments_.empty() ? std::nan("") : moments_.front().time;
}

double PowerHistory::peak_memory() const {
  const std::lock_guard lock(mutex_);
  return moments_.empty() ? std::nan("") : peak_memory_;
}

}  // namespace scalelab::worker
