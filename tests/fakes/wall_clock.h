// Replaces libc's clock_gettime in a test program, so that a test can set the wall clock. Include it in one file
// of the program.
#pragma once

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace scalelab {

inline std::atomic<int64_t> wall_clock_shift = 0;  // seconds that are added to the wall clock

// Shifts the wall clock until the end of the scope.
class WallClockShift {
 public:
  explicit WallClockShift(int64_t seconds) { Set(seconds); }
  ~WallClockShift() { Set(0); }
  WallClockShift(const WallClockShift&) = delete;

 private:
  // absl::Now calls clock_gettime once in about two seconds and computes the time between.
  static void Set(int64_t seconds) {
    wall_clock_shift = seconds;
    const auto late = [] {
      timespec now{};
      clock_gettime(CLOCK_REALTIME, &now);
      return absl::AbsDuration(absl::Now() - absl::TimeFromTimespec(now)) > absl::Minutes(1);
    };
    while (late()) absl::SleepFor(absl::Milliseconds(5));
  }
};

}  // namespace scalelab

extern "C" int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const long result = syscall(SYS_clock_gettime, clock, now);
  if (result == 0 && clock == CLOCK_REALTIME) now->tv_sec += scalelab::wall_clock_shift;
  return static_cast<int>(result);
}
