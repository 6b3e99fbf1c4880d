// Reads the kernel's counters of the CPUs that the worker may use.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace scalelab::worker {

// Seconds since boot, summed over CPUs.
struct CpuTimes {
  double busy = 0, idle = 0, steal = 0;

  double total() const { return busy + idle + steal; }
};

// The values of the counters at one time. A value is absent if the system does not have the counter.
struct Counters {
  std::optional<CpuTimes> cpu;
  std::optional<double> pressure;  // seconds in which any process of the system waited for a CPU
  std::optional<int64_t>
      throttle;  // number of times that the CPUs were slowed down because they were too hot
};

// Returns the times of `cpus` from the text of /proc/stat; nothing if one of them is missing. `ticks` is the
// number of clock ticks in a second.
std::optional<CpuTimes> ParseCpuTimes(absl::string_view stat, const std::vector<int>& cpus, double ticks);
// Returns the seconds in the line "some" of the text of /proc/pressure/cpu.
std::optional<double> ParsePressure(absl::string_view text);
// Returns the CPU seconds of a process and of its descendants that were waited for, from the
// text of /proc/PID/stat.
std::optional<double> ParseProcessTimes(absl::string_view stat, double ticks);

Counters ReadCounters(const std::vector<int>& cpus);
// Returns the CPU seconds of this process, and of process `pid` and its descendants that have ended.
std::optional<double> OwnCpuSeconds(int pid);

}  // namespace scalelab::worker
