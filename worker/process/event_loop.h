// A single-threaded event loop: file descriptors, timers and calls posted by other threads, one callback at a
// time. All of the worker's state lives on the loop's thread, so it needs no locks.
//
// Callbacks take the time and random numbers from the loop. A simulation has its own ones, and calls Step instead of Run.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace scalelab::worker {

class EventLoop {
 public:
  using Callback = std::function<void()>;
  using TimerId = uint64_t;  // 0 is never a timer
  // Both functions are called on the loop's thread only.
  struct Sources {
    std::function<absl::Duration()> now;  // since a fixed moment; never set back
    std::function<uint64_t()> random;     // 64 random bits
  };

  // The sources are SteadyNow and a random generator of its own.
  EventLoop();
  explicit EventLoop(Sources sources);
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Calls `readable` whenever `fd` is readable or closed by its peer, until Unwatch.
  void Watch(int fd, Callback readable);
  void Unwatch(int fd);
  // Calls `then` once, `delay` from now or later, on the clock of Now. Cancel ignores a timer that has run
  // or does not exist.
  TimerId After(absl::Duration delay, Callback then);
  void Cancel(TimerId id);
  // Runs `call` on the loop's thread. This is the only method that any thread may call.
  void Post(Callback call) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Duration Now() const { return sources_.now(); }
  uint64_t Random() { return sources_.random(); }

  // Runs callbacks until Stop is called.
  void Run();
  void Stop() { stopped_ = true; }
  // Runs callbacks until `done()` is true or `limit` has passed; returns whether `done()` was true. For
  // start-up and tests.
  bool RunUntil(const std::function<bool()>& done, absl::Duration limit);
  // Runs the callbacks that are due, without waiting. For simulations, which have a clock of their own.
  void Step();
  // Returns when Step has something to do, on the clock of Now: now if there is a posted call or a readable descriptor, else
  // when the next timer is due; infinite if there is none.
  absl::Duration NextStep() const;

 private:
  std::vector<pollfd> Descriptors() const;
  void RunOnce(absl::Duration until);
  void RunPosted() ABSL_LOCKS_EXCLUDED(mutex_);
  void RunTimers();

  const Sources sources_;
  int wake_fd_;
  bool stopped_ = false;
  std::map<int, Callback> watched_;
  TimerId next_timer_ = 1;
  std::map<std::pair<absl::Duration, TimerId>, Callback> timers_;  // by due time, see Now
  std::map<TimerId, absl::Duration> due_;

  absl::Mutex mutex_;
  std::vector<Callback> posted_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace scalelab::worker
