// The short measurement of a node before and after attempts.
#pragma once

#include <atomic>
#include <vector>

#include "absl/time/time.h"
#include "scalelab/v1/run.pb.h"

namespace scalelab::worker {

// Blocks for about `budget`: half of it computes on one core, the other half streams through memory. Ends early once `stop`
// is true. `cpus` are those that the worker may use.
v1::Calibration Calibrate(absl::Duration budget, const std::vector<int>& cpus, const std::atomic<bool>& stop);

}  // namespace scalelab::worker
