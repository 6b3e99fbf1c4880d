// A small all-reduce between two threads of this process, over the loopback network of the node.
//
// It needs two cores at the same time and the kernel's network, as ranks on one node do.
#pragma once

#include <atomic>
#include <optional>

#include "absl/time/time.h"

namespace scalelab::worker {

// Repeats an all-reduce of 1 MiB for about `budget`, or until `stop` is true. Returns the bytes that were reduced per second. Returns
// nothing if the node has no loopback network, or if the other thread did not answer within a second.
std::optional<double> NodeAllReduceRate(absl::Duration budget, const std::atomic<bool>& stop);

}  // namespace scalelab::worker
