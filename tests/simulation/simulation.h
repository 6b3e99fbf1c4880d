// One simulation, which is determined by its seed.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/simulation/faults.h"

namespace scalelab::simulation {

struct Result {
  uint64_t hash = 0;  // of the trace
  double hours = 0;   // of virtual time
  std::vector<std::string> violations;
  std::string enabled_faults;
  std::array<int64_t, static_cast<size_t>(Fault::kCount)> faults{};
  size_t studies = 0, attempts = 0;
  int64_t submits = 0, polls = 0, cancels = 0;
  double calls_per_hour = 0;  // of the scheduler
};

// `database` is the absolute path of a file that does not exist. Its directory becomes the working directory; the attempts of
// the simulation are in its folder "runs", whose contents are removed before.
Result Simulate(uint64_t seed, const std::string& database, bool print_trace);

}  // namespace scalelab::simulation
