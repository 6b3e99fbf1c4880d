// Limits of this process: open files and memory.
#pragma once

#include "absl/status/statusor.h"

namespace scalelab::server {

// Raises the limit of open files as far as this process may, to at most 65,536: programs that the service starts
// inherit the limit, and some of them take time in proportion to it. Returns the limit. Returns RESOURCE_EXHAUSTED
// if the service cannot work with it.
absl::StatusOr<int> RaiseFileLimit();

// Limits the number of heaps of the C library, so that memory which threads have freed can be used again.
void LimitHeaps();

}  // namespace scalelab::server
