// Reads the kernel's counters of the CPUs that the worker may use.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace scalelab::worker {

// Seconds since the boot, summed over CPUs.
struct CpuTimes {
  double busy = 0, idle = 0, steal = 0;

  double total() const { return busy + idle + steal; }
};

// What the counters show at one moment. Absent: the system does not show it.
struct Counters {
  std::optional<CpuTimes> cpu;
  std::optional<double> pressure;  // seconds in which a process waited for a CPU, of the whole system
  std::optional<int64_t>
      throttle;  // number of times that the CPUs were slowed down because they were too hot
};

// Returns the times of `cpus` in the text of /proc/stat; nothing if one of them is missing. `ticks` is the number of ticks in
// a second.
std::optional<CpuTimes> ParseCpuTimes(absl::string_view stat, const std::vector<int>& cpus, double ticks);
// Returns the seconds of the line "some" in the text of /proc/pressure/cpu.
std::optional<double> ParsePressure(absl::string_view text);
// Returns the CPU seconds of a process and of its descendants that it has waited for, from the text of /proc/PID/stat.
std::optional<double> ParseProcessTimes(absl::string_view stat, double ticks);

Counters ReadCounters(const std::vector<int>& cpus);
// Returns the CPU seconds of this process, and of process `pid` and its descendants that have ended.
std::optional<double> OwnCpuSeconds(int pid);

}  // namespace scalelab::worker
