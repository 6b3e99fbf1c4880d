// Replaces libc's clock_gettime and gettimeofday in a test program, so that a test can set the wall clock. Include it in
// one file of the program.
#pragma once

#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace scalelab {

inline std::atomic<int64_t> wall_clock_shift = 0;  // seconds that are added to the wall clock
// Whether gettimeofday is shifted, too. Abseil uses it only to convert a timeout to the time at which a wait ends. If it is
// shifted, timeouts of absl::Mutex, absl::CondVar and absl::Notification that begin under a positive shift end that much late.
inline std::atomic<bool> wall_clock_shifts_timeouts = false;

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

extern "C" int gettimeofday(timeval* now, void* /*zone*/) noexcept {
  const auto result = static_cast<int>(syscall(SYS_gettimeofday, now, nullptr));
  if (result == 0 && scalelab::wall_clock_shifts_timeouts) now->tv_sec += scalelab::wall_clock_shift;
  return result;
}
