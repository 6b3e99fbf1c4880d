#include "worker/power/cpu_energy.h"

#include <filesystem>
#include <fstream>
#include <limits>
#include <system_error>

#include "absl/strings/match.h"

namespace scalelab::worker {
namespace {

std::optional<int64_t> NumberIn(const std::string& path) {
  std::ifstream file(path);
  int64_t number = 0;
  if (!(file >> number) || number < 0) return std::nullopt;
  return number;
}

std::string WordIn(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

}  // namespace

CpuEnergy::CpuEnergy(const std::string& directory) {
  std::error_code error;
  for (std::filesystem::directory_iterator zone(directory, error), end; !error && zone != end;
       zone.increment(error)) {
    // "intel-rapl:0" is a package, on AMD too. "intel-rapl:0:0" is a part of it, "intel-rapl-mmio:0" is the same package again,
    // and a zone "psys" contains all packages.
    if (!absl::StartsWith(zone->path().filename().string(), "intel-rapl:")) continue;
    if (!absl::StartsWith(WordIn(zone->path() / "name"), "package-")) continue;
    packages_.push_back(
        {zone->path() / "energy_uj", NumberIn(zone->path() / "max_energy_range_uj").value_or(0), {}});
  }
}

double CpuEnergy::Joules() {
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  if (packages_.empty()) return kUnknown;
  for (Package& package : packages_) {
    const std::optional<int64_t> now = NumberIn(package.file);
    if (!now) return kUnknown;
    int64_t more = *now - package.last.value_or(*now);
    if (more < 0) more += package.range;
    if (more < 0) return kUnknown;
    package.last = now;
    joules_ += static_cast<double>(more) / 1e6;
  }
  return joules_;
}

}  // namespace scalelab::worker
