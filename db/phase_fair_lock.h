// A phase-fair reader-writer lock whose waiters sleep (Brandenburg and Anderson 2010, "Spin-Based
// Reader-Writer Synchronization for Multiprocessor Real-Time Systems", Real-Time Systems 46, section 3).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace scalelab::db {

// A reader waits for one writer at most. A writer waits for the readers that came before it and for earlier
// writers. So neither side can starve. Thread-safe.
class PhaseFairLock {
 public:
  void lock_shared() {
    std::unique_lock lock(mutex_);
    if (!writing_ && writers_ == 0) {
      ++readers_;
      return;
    }
    ++admitted_next_;
    const uint64_t phase = phase_;
    changed_.wait(lock, [&] { return phase_ != phase; });  // unlock() has counted this reader
  }
  void unlock_shared() {
    std::lock_guard lock(mutex_);
    if (--readers_ == 0) changed_.notify_all();
  }
  void lock() {
    std::unique_lock lock(mutex_);
    ++writers_;
    changed_.wait(lock, [&] { return !writing_ && readers_ == 0; });
    --writers_;
    writing_ = true;
  }
  void unlock() {
    std::lock_guard lock(mutex_);
    writing_ = false;
    ++phase_;
    readers_ = admitted_next_;
    admitted_next_ = 0;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;  // guards all members below
  std::condition_variable changed_;
  int readers_ = 0;        // readers that hold the lock
  int admitted_next_ = 0;  // readers that wait for the current write
  int writers_ = 0;        // writers that wait
  bool writing_ = false;
  uint64_t phase_ = 0;  // number of completed writes
};

}  // namespace scalelab::db
