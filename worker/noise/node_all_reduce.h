// A small all-reduce between two threads of this process, over the loopback network of the node.
//
// Like ranks on one node, the threads need two cores at the same time and the kernel's network.
#pragma once

#include <atomic>
#include <optional>

#include "absl/time/time.h"

namespace scalelab::worker {

// Repeats an all-reduce of 1 MiB for about `budget`, or until `stop` is true. Returns the number of bytes
// reduced per second. Returns nothing if the node has no loopback network, or if a thread does not respond
// within a second.
std::optional<double> NodeAllReduceRate(absl::Duration budget, const std::atomic<bool>& stop);

}  // namespace scalelab::worker
