// Loops on several threads.
#pragma once

#include <cstddef>

#include "absl/functional/function_ref.h"

namespace scalelab::analysis {

// Calls `work` with each number below `count`, on up to `threads` threads including the caller's, and returns after the last
// call has returned. There are fewer threads if the machine has fewer processors or cannot start more. `work` must not throw.
void ForEachInParallel(size_t count, size_t threads, absl::FunctionRef<void(size_t)> work);

}  // namespace scalelab::analysis
