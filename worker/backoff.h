// Exponential backoff with jitter.
#pragma once

#include <algorithm>
#include <cmath>

#include "absl/random/random.h"
#include "absl/time/time.h"

namespace scalelab::worker {

// Returns the delay after `failures` failures in a row (from 1): 50 ms, doubled for each further failure up
// to 5 s. A random factor between 0.5 and 1 keeps a thousand workers from retrying at the same instant.
inline absl::Duration BackoffAfter(int failures) {
  thread_local absl::InsecureBitGen random;
  const double full = std::min(5.0, 0.05 * std::exp2(std::min(failures - 1, 10)));
  return absl::Seconds(full * absl::Uniform(random, 0.5, 1.0));
}

}  // namespace scalelab::worker
