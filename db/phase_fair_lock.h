// Readers and writers in turn: a phase-fair lock (Brandenburg and Anderson 2010, "Spin-Based Reader-Writer
// Synchronization for Multiprocessor Real-Time Systems", Real-Time Systems 46, section 3) whose waiters
// sleep.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace scalelab::db {

// A reader waits for one writer at most, a writer for the readers that came before it and for writers in
// front. Neither can be starved, as by a lock that whoever is awake takes first. May be used by any thread.
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
    changed_.wait(lock, [&] { return phase_ != phase; });  // the writer that ended has counted it
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
  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  int readers_ = 0;        // that read
  int admitted_next_ = 0;  // that wait for the end of a write
  int writers_ = 0;        // that wait
  bool writing_ = false;
  uint64_t phase_ = 0;  // writes that have ended
};

}  // namespace scalelab::db
