// The short measurement of a node before and after attempts.
#pragma once

#include <atomic>
#include <vector>

#include "absl/time/time.h"
#include "scalelab/v1/run.pb.h"

namespace scalelab::worker {

// Blocks for about `budget`: two fifths of it compute on one core, two fifths stream through memory, and the rest is for all-reduces
// on the node if the worker may use two CPUs or more. Ends early once `stop` is true. `cpus` are those that the worker may use.
v1::Calibration Calibrate(absl::Duration budget, const std::vector<int>& cpus, const std::atomic<bool>& stop);

}  // namespace scalelab::worker
