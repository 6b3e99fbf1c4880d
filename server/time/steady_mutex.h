// A mutex with a condition variable whose timeouts follow the steady clock. Timeouts of absl::Mutex and absl::CondVar
// follow the wall clock. Clang checks the annotations that name this mutex; it cannot check those of std::mutex.
#pragma once

#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "server/time/clock.h"

namespace scalelab::server {

// Thread-safe.
class ABSL_LOCKABLE SteadyMutex {
 public:
  SteadyMutex() = default;
  SteadyMutex(const SteadyMutex&) = delete;
  SteadyMutex& operator=(const SteadyMutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }
  // Unlocks the mutex, blocks until a call of Signal or SignalAll or until `timeout` has passed, and locks the mutex
  // again. It may also return earlier.
  void WaitFor(absl::Duration timeout) ABSL_EXCLUSIVE_LOCKS_REQUIRED(this) {
    std::unique_lock<std::mutex> lock(mutex_, std::adopt_lock);
    if (timeout == absl::InfiniteDuration()) {
      signalled_.wait(lock);
    } else {
      signalled_.wait_for(lock, absl::ToChronoNanoseconds(timeout));
    }
    lock.release();  // the caller still holds the mutex
  }
  // Blocks until `condition` returns true or until `timeout` has passed. Returns the last result of `condition`, which is
  // called with the mutex locked. Call Signal or SignalAll after each change of that result.
  template <typename Condition>
  bool AwaitWithTimeout(const Condition& condition, absl::Duration timeout)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(this) {
    const absl::Duration deadline = Clock::System().Steady() + timeout;
    while (!condition()) {
      const absl::Duration left = deadline - Clock::System().Steady();
      if (left <= absl::ZeroDuration()) return false;
      WaitFor(left);
    }
    return true;
  }
  // Tells the thread safety analysis, which does not look through lambdas, that the caller holds the mutex.
  void AssertHeld() const ABSL_ASSERT_EXCLUSIVE_LOCK() {}
  // Wakes one waiting thread, or all of them.
  void Signal() { signalled_.notify_one(); }
  void SignalAll() { signalled_.notify_all(); }

 private:
  std::mutex mutex_;
  std::condition_variable signalled_;
};

// Holds the mutex from the constructor to the destructor.
class ABSL_SCOPED_LOCKABLE SteadyMutexLock {
 public:
  explicit SteadyMutexLock(SteadyMutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(*mutex) {
    mutex->Lock();
  }
  ~SteadyMutexLock() ABSL_UNLOCK_FUNCTION() { mutex_.Unlock(); }
  SteadyMutexLock(const SteadyMutexLock&) = delete;
  SteadyMutexLock& operator=(const SteadyMutexLock&) = delete;

 private:
  SteadyMutex& mutex_;
};

}  // namespace scalelab::server
