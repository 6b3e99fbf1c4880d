// The clock for waits, time limits and backoff.
#pragma once

#include <chrono>

#include "absl/time/time.h"

namespace scalelab::worker {

// Returns the time since a fixed moment in the past. Setting the wall clock does not change it.
inline absl::Duration SteadyNow() {
  return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace scalelab::worker
