// The state that all parts of a simulation share: time, random numbers, faults, the trace and the violations.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/simulation/event_queue.h"
#include "tests/simulation/faults.h"
#include "tests/simulation/random.h"

namespace scalelab::simulation {

struct World {
  explicit World(uint64_t seed, bool print_trace)
      : random(seed), queue(random), faults(random, queue), print(print_trace) {}

  // Adds a line to the trace.
  template <typename... Parts>
  void Trace(const Parts&... parts) {
    const std::string line = absl::StrCat(absl::ToInt64Microseconds(queue.Steady()), " ", parts...);
    for (const unsigned char c : line) hash = (hash ^ c) * 1099511628211u;  // FNV-1a
    if (print)
      absl::PrintF("%11.3f s %s\n", 1e-6 * static_cast<double>(absl::ToInt64Microseconds(queue.Steady())),
                   absl::StrCat(parts...));
  }
  // Records that an invariant does not hold.
  template <typename... Parts>
  void Violation(const Parts&... parts) {
    Trace("VIOLATION ", parts...);
    violations.push_back(absl::StrCat("after ", absl::FormatDuration(queue.Steady()), ": ", parts...));
  }

  Random random;
  EventQueue queue;
  Faults faults;
  std::vector<std::string> violations;
  uint64_t hash = 14695981039346656037u;
  const bool print;
};

}  // namespace scalelab::simulation
