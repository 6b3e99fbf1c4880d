// How long to wait before the next try.
#pragma once

#include <algorithm>
#include <cmath>

#include "absl/random/random.h"
#include "absl/time/time.h"

namespace scalelab::worker {

// After `failures` tries in a row (from 1): doubles from 50 ms up to 5 s, less up to a half at random, so
// that a thousand workers do not come back in the same instant.
inline absl::Duration BackoffAfter(int failures) {
  thread_local absl::InsecureBitGen random;
  const double full = std::min(5.0, 0.05 * std::exp2(std::min(failures - 1, 10)));
  return absl::Seconds(full * absl::Uniform(random, 0.5, 1.0));
}

}  // namespace scalelab::worker
