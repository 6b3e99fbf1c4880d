// Threads for work that may block on the database.
#pragma once

#include <deque>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace scalelab::server {

// A fixed number of threads behind a bounded queue. Callbacks of the coordinator use it, because the core
// thread must not block. May be used from any thread.
class ReaderPool {
 public:
  ReaderPool(int threads, size_t queue_limit);
  // Runs the queued work, then ends the threads.
  ~ReaderPool();
  ReaderPool(const ReaderPool&) = delete;
  ReaderPool& operator=(const ReaderPool&) = delete;

  // Calls `work` exactly once: with OK on a thread of the pool, or with RESOURCE_EXHAUSTED on the calling
  // thread, at once, when the queue is full. `work` must not block when it gets an error.
  void Run(absl::AnyInvocable<void(absl::Status)> work) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Serve() ABSL_LOCKS_EXCLUDED(mutex_);

  const size_t queue_limit_;
  absl::Mutex mutex_;
  absl::CondVar arrived_;
  std::deque<absl::AnyInvocable<void(absl::Status)>> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace scalelab::server
