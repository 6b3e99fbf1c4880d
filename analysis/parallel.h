// Work on several threads.
#pragma once

#include <cstddef>
#include <future>
#include <system_error>
#include <utility>

#include "absl/functional/function_ref.h"

namespace scalelab::analysis {

// Calls `work` with each number below `count`, on up to `threads` threads including the caller's, and returns after the last
// call has returned. There are fewer threads if the machine has fewer processors or cannot start more. Throws
// an exception of `work`, after the other threads have ended.
void ForEachInParallel(size_t count, size_t threads, absl::FunctionRef<void(size_t)> work);

// Calls `work` on another thread or, if the system has no thread left, when its result is needed. When the
// returned future is destroyed, it waits for the end of its thread.
template <class Work>
auto Meanwhile(Work work) {
  try {
    return std::async(std::launch::async, work);
  } catch (const std::system_error&) {
    return std::async(std::launch::deferred, std::move(work));
  }
}

}  // namespace scalelab::analysis
