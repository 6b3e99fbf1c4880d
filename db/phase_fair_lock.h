// Readers and writers in turn: a phase-fair lock (Brandenburg and Anderson 2010, "Spin-Based Reader-Writer
// Synchronization for Multiprocessor Real-Time Systems", Real-Time Systems 46, section 3) whose waiters
// sleep.
#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace scalelab::db {

// A reader waits for one writer at most, a writer for the readers that came before it and for writers in
// front. Neither can be starved, as by a lock that whoever is awake takes first. May be used by any thread.
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
    while (phase_ == phase) changed_.Wait(&mutex_);  // the writer that ended has counted it
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
  int readers_ ABSL_GUARDED_BY(mutex_) = 0;        // that read
  int admitted_next_ ABSL_GUARDED_BY(mutex_) = 0;  // that wait for the end of a write
  int writers_ ABSL_GUARDED_BY(mutex_) = 0;        // that wait
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t phase_ ABSL_GUARDED_BY(mutex_) = 0;  // writes that have ended
};

}  // namespace scalelab::db
