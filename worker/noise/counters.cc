#include "worker/noise/counters.h"

#include <time.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace scalelab::worker {
namespace {

std::optional<std::string> TextOf(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

double Ticks() { return static_cast<double>(sysconf(_SC_CLK_TCK)); }

// Adds up the throttling events of the cores and of their packages, which have separate counters. Only Intel
// CPUs have these counters.
std::optional<int64_t> ReadThrottle(const std::vector<int>& cpus) {
  std::optional<int64_t> sum;
  for (const int cpu : cpus) {
    const auto text =
        TextOf(absl::StrCat("/sys/devices/system/cpu/cpu", cpu, "/thermal_throttle/core_throttle_count"));
    int64_t count = 0;
    if (text && absl::SimpleAtoi(absl::StripAsciiWhitespace(*text), &count)) sum = sum.value_or(0) + count;
  }
  return sum;
}

}  // namespace

std::optional<CpuTimes> ParseCpuTimes(absl::string_view stat, const std::vector<int>& cpus, double ticks) {
  std::set<int> missing(cpus.begin(), cpus.end());
  CpuTimes times;
  for (const absl::string_view line : absl::StrSplit(stat, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    int cpu = 0;
    if (words.size() < 9 || !absl::StartsWith(words[0], "cpu") ||
        !absl::SimpleAtoi(words[0].substr(3), &cpu) || missing.erase(cpu) == 0)
      continue;
    // The fields are: user nice system idle iowait irq softirq steal.
    std::vector<double> value(8);
    for (size_t i = 0; i < value.size(); ++i) {
      if (!absl::SimpleAtod(words[i + 1], &value[i])) return std::nullopt;
    }
    times.busy += (value[0] + value[1] + value[2] + value[5] + value[6]) / ticks;
    times.idle += (value[3] + value[4]) / ticks;
    times.steal += value[7] / ticks;
  }
  if (cpus.empty() || !missing.empty()) return std::nullopt;
  return times;
}

std::optional<double> ParsePressure(absl::string_view text) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const size_t total = line.find("total=");
    double micros = 0;
    if (!absl::StartsWith(line, "some ") || total == absl::string_view::npos) continue;
    if (absl::SimpleAtod(line.substr(total + 6), &micros)) return micros / 1e6;
  }
  return std::nullopt;
}

std::optional<double> ParseProcessTimes(absl::string_view stat, double ticks) {
  // The name of the program, in parentheses, may contain spaces and parentheses.
  const size_t name_end = stat.rfind(')');
  if (name_end == absl::string_view::npos) return std::nullopt;
  const std::vector<absl::string_view> words =
      absl::StrSplit(stat.substr(name_end + 1), ' ', absl::SkipEmpty());
  // The first field after the name, the state, is number 3. utime, stime, cutime and cstime are numbers
  // 14 to 17.
  double sum = 0;
  if (words.size() < 15) return std::nullopt;
  for (size_t i = 11; i < 15; ++i) {
    double value = 0;
    if (!absl::SimpleAtod(words[i], &value)) return std::nullopt;
    sum += value / ticks;
  }
  return sum;
}

Counters ReadCounters(const std::vector<int>& cpus) {
  Counters counters;
  if (const auto stat = TextOf("/proc/stat")) counters.cpu = ParseCpuTimes(*stat, cpus, Ticks());
  if (const auto text = TextOf("/proc/pressure/cpu")) counters.pressure = ParsePressure(*text);
  counters.throttle = ReadThrottle(cpus);
  return counters;
}

std::optional<double> OwnCpuSeconds(int pid) {
  const auto stat = TextOf(absl::StrCat("/proc/", pid, "/stat"));
  const auto times = stat ? ParseProcessTimes(*stat, Ticks()) : std::nullopt;
  timespec own{};
  if (!times || clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &own) != 0) return std::nullopt;
  return *times + static_cast<double>(own.tv_sec) + static_cast<double>(own.tv_nsec) / 1e9;
}

}  // namespace scalelab::worker
