// Calls functions at times of the steady clock, on one thread.
#pragma once

#include <cstdint>
#include <map>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "server/time/steady_mutex.h"

namespace scalelab::server {

// Replaces grpc::Alarm, which waits by the wall clock in gRPC 1.51. Thread-safe; its functions may use it, too. It holds a
// function no longer than the function's Timer exists. Therefore the owners of the timers limit the number of functions.
class Timers {
  // The due time, and the position among all functions, which makes the key unique.
  using Key = std::pair<absl::Duration, uint64_t>;

 public:
  using Function = absl::AnyInvocable<void()>;

  // A function that is due later. Its destructor calls Cancel. Must be destroyed before the Timers object. Not thread-safe.
  class Timer {
   public:
    Timer() = default;  // no function
    Timer(Timer&& other) noexcept
        : timers_(std::exchange(other.timers_, nullptr)), key_(std::move(other.key_)) {}
    Timer& operator=(Timer&& other) noexcept;
    ~Timer() { Cancel(); }
    // Destroys the function, if its call has not begun. Does not wait for the end of a call.
    void Cancel();

   private:
    friend class Timers;
    Timer(Timers* timers, const Key& key) : timers_(timers), key_(key) {}

    Timers* timers_ = nullptr;
    Key key_;
  };

  Timers();
  ~Timers() { Stop(); }
  Timers(const Timers&) = delete;
  Timers& operator=(const Timers&) = delete;

  // Calls `function` once when `delay` has passed. Functions are called one at a time, in the order of their due times.
  // A function must not block, because it delays the others. After Stop, this method only destroys `function`.
  [[nodiscard]] Timer Call(absl::Duration delay, Function function) ABSL_LOCKS_EXCLUDED(mutex_);

  // Waits for the end of the call in progress, ends the thread, and destroys the functions that are not due yet. Must not be
  // called by a function, nor by two threads at the same time.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Functions = std::map<Key, Function>;

  void Run();
  // Blocks until a function is due, and moves it to `function`. Returns false after Stop.
  bool Take(Function* function) ABSL_LOCKS_EXCLUDED(mutex_);
  void Drop(const Key& key) ABSL_LOCKS_EXCLUDED(mutex_);

  SteadyMutex mutex_;
  Functions functions_ ABSL_GUARDED_BY(mutex_);
  uint64_t added_ ABSL_GUARDED_BY(mutex_) = 0;  // number of functions that were added
  // The time at which the waiting thread wakes up by itself.
  absl::Duration wakes_at_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteDuration();
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace scalelab::server
