// The energy of the CPU packages of this node, from the kernel's powercap interface (RAPL).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace scalelab::worker {

// Not thread-safe.
class CpuEnergy {
 public:
  // `directory` is /sys/class/powercap, except in tests.
  explicit CpuEnergy(const std::string& directory);

  // Returns the joules of all packages since the first call; NaN if there are no packages, or if this process may not read
  // one of them. A counter may wrap around once between two calls.
  double Joules();

 private:
  struct Package {
    std::string file;
    int64_t range = 0;  // in microjoules: the counter continues at 0 after this value; 0: unknown
    std::optional<int64_t> last;
  };

  std::vector<Package> packages_;
  double joules_ = 0;
};

}  // namespace scalelab::worker
