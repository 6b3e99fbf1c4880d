// Ends a thread that wakes up at intervals.
#pragma once

#include <condition_variable>
#include <mutex>

#include "absl/time/time.h"

namespace scalelab::server {

// Thread-safe. Its timeouts follow the steady clock, unlike those of absl::Mutex (steady_mutex.h): a wall clock that is set back
// does not make the thread sleep longer.
class StopSignal {
 public:
  void Stop() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
  }
  bool stopped() const {
    const std::lock_guard lock(mutex_);
    return stopped_;
  }
  // Blocks until a call of Stop, or until `timeout` has passed. Returns whether Stop was called.
  bool WaitFor(absl::Duration timeout) {
    std::unique_lock lock(mutex_);
    if (timeout == absl::InfiniteDuration()) {
      changed_.wait(lock, [this] { return stopped_; });
      return true;
    }
    return changed_.wait_for(lock, absl::ToChronoNanoseconds(timeout), [this] { return stopped_; });
  }

 private:
  mutable std::mutex mutex_;  // guards the other members
  std::condition_variable changed_;
  bool stopped_ = false;
};

}  // namespace scalelab::server
