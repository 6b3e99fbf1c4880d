// A phase-fair reader-writer lock whose waiters sleep (Brandenburg and Anderson 2010, "Spin-Based
// Reader-Writer Synchronization for Multiprocessor Real-Time Systems", Real-Time Systems 46, section 3).
#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace scalelab::db {

// A reader waits for one writer at most. A writer waits for the readers that came before it and for earlier
// writers. So neither side can starve. Thread-safe.
class ABSL_LOCKABLE PhaseFairLock {
 public:
  void lock_shared() ABSL_SHARED_LOCK_FUNCTION() {
    absl::MutexLock lock(&mutex_);
    if (!writing_ && writers_ == 0) {
      ++readers_;
      return;
    }
    ++admitted_next_;
    const uint64_t phase = phase_;
    // When the phase ends, unlock() adds this reader to readers_.
    while (phase_ == phase) changed_.Wait(&mutex_);
  }
  void unlock_shared() ABSL_UNLOCK_FUNCTION() {
    absl::MutexLock lock(&mutex_);
    if (--readers_ == 0) changed_.SignalAll();
  }
  void lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    absl::MutexLock lock(&mutex_);
    ++writers_;
    while (writing_ || readers_ > 0) changed_.Wait(&mutex_);
    --writers_;
    writing_ = true;
  }
  void unlock() ABSL_UNLOCK_FUNCTION() {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    ++phase_;
    readers_ = admitted_next_;
    admitted_next_ = 0;
    changed_.SignalAll();
  }

 private:
  absl::Mutex mutex_;
  absl::CondVar changed_;
  int readers_ ABSL_GUARDED_BY(mutex_) = 0;        // readers that hold the lock
  int admitted_next_ ABSL_GUARDED_BY(mutex_) = 0;  // readers that wait for the current write
  int writers_ ABSL_GUARDED_BY(mutex_) = 0;        // writers that wait
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t phase_ ABSL_GUARDED_BY(mutex_) = 0;  // number of completed writes
};

}  // namespace scalelab::db
