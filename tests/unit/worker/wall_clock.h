// Replaces libc's clock_gettime in a test program, so that a test can set the wall clock. Include it in one file
// of the program.
#pragma once

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace scalelab::worker {

inline int64_t wall_clock_shift = 0;  // seconds that are added to the wall clock

// Shifts the wall clock until the end of the scope.
class WallClockShift {
 public:
  explicit WallClockShift(int64_t seconds) { wall_clock_shift = seconds; }
  ~WallClockShift() { wall_clock_shift = 0; }
  WallClockShift(const WallClockShift&) = delete;
};

}  // namespace scalelab::worker

extern "C" int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const long result = syscall(SYS_clock_gettime, clock, now);
  if (result == 0 && clock == CLOCK_REALTIME) now->tv_sec += scalelab::worker::wall_clock_shift;
  return static_cast<int>(result);
}
