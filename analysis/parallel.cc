#include "analysis/parallel.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <system_error>
#include <thread>
#include <vector>

namespace scalelab::analysis {

void ForEachInParallel(size_t count, size_t threads, absl::FunctionRef<void(size_t)> work) {
  std::atomic<size_t> next = 0;
  const auto take = [&] {
    for (size_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::future<void>> others;  // each waits for its thread when it is destroyed
  const size_t most = std::min({count, threads, size_t{std::thread::hardware_concurrency()}});
  try {
    while (others.size() + 1 < most) others.push_back(std::async(std::launch::async, take));
  } catch (const std::system_error&) {
    // The system cannot start more threads. Continue with those that were started.
  }
  take();
  for (std::future<void>& other : others) other.get();
}

}  // namespace scalelab::analysis
