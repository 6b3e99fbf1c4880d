// The short measurement of a node before and after attempts.
#pragma once

#include <atomic>
#include <vector>

#include "absl/time/time.h"
#include "scalelab/v1/run.pb.h"

namespace scalelab::worker {

// Measures the node, and blocks for about `budget`. It computes on one core, streams through memory and, if
// the worker may use two or more CPUs, repeats an all-reduce on the node. The three parts take 2/5, 2/5 and
// 1/5 of the time. Without all-reduces, each of the other parts takes half. Ends early when `stop` becomes
// true. `cpus` are the CPUs that the worker may use.
v1::Calibration Calibrate(absl::Duration budget, const std::vector<int>& cpus, const std::atomic<bool>& stop);

}  // namespace scalelab::worker
