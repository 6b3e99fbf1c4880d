// Exponential backoff with jitter.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/time/time.h"

namespace scalelab::worker {

// Returns the delay after `failures` failures in a row (from 1): 50 ms, doubled for each further failure up
// to 5 s. A factor between 0.5 and 1 keeps a thousand workers from retrying at the same instant. `random` is 64
// random bits, which determine the factor.
inline absl::Duration BackoffAfter(int failures, uint64_t random) {
  const double full = std::min(5.0, 0.05 * std::exp2(std::min(failures - 1, 10)));
  return absl::Seconds(full * (0.5 + static_cast<double>(random >> 11) * 0x1.0p-54));
}

}  // namespace scalelab::worker
