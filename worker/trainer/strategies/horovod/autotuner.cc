#include "worker/trainer/strategies/horovod/autotuner.h"

#include <cmath>
#include <iterator>

namespace scalelab::trainer::horovod {
namespace {

constexpr double kFusionMib[] = {0, 1, 2, 4, 8, 16, 32, 64, 128};
constexpr double kCycleMilliseconds[] = {0.2, 0.5, 1, 2, 5, 10, 20};

template <size_t n>
int Nearest(const double (&ladder)[n], double value) {
  size_t nearest = 0;
  for (size_t i = 1; i < n; ++i) {
    if (std::abs(ladder[i] - value) < std::abs(ladder[nearest] - value)) nearest = i;
  }
  return static_cast<int>(nearest);
}

}  // namespace

Autotuner::Autotuner(const Setting& start)
    : at_(Nearest(kFusionMib, static_cast<double>(start.fusion_bytes) / (1 << 20)),
          Nearest(kCycleMilliseconds, start.cycle_seconds * 1e3)),
      best_(at_) {}

Autotuner::Setting Autotuner::current() const {
  return {static_cast<int64_t>(kFusionMib[at_.first]) << 20, kCycleMilliseconds[at_.second] / 1e3};
}

void Autotuner::Score(double bytes_per_second) {
  if (done_) return;
  tried_[at_] = bytes_per_second;
  if (bytes_per_second > tried_[best_]) best_ = at_;
  const Rungs neighbours[] = {{best_.first, best_.second - 1},
                              {best_.first, best_.second + 1},
                              {best_.first - 1, best_.second},
                              {best_.first + 1, best_.second}};
  for (const Rungs& next : neighbours) {
    if (next.first < 0 || next.first >= std::ssize(kFusionMib)) continue;
    if (next.second < 0 || next.second >= std::ssize(kCycleMilliseconds)) continue;
    if (tried_.contains(next)) continue;
    at_ = next;
    return;
  }
  at_ = best_;
  done_ = true;
}

}  // namespace scalelab::trainer::horovod
