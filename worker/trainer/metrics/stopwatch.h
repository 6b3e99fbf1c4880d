// Measures wall time on the monotonic clock.
#pragma once

#include <chrono>

namespace scalelab::trainer {

class Stopwatch {
 public:
  double Seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  // Returns the seconds since the start or the last lap, and starts the next lap.
  double Lap() {
    const Clock::time_point now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - start_).count();
    start_ = now;
    return seconds;
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

}  // namespace scalelab::trainer
