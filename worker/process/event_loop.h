// A single-threaded event loop: file descriptors, timers and calls posted by other threads, one callback at a
// time. All of the worker's state lives on the loop's thread, so it needs no locks.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "absl/time/time.h"

namespace scalelab::worker {

class EventLoop {
 public:
  using Callback = std::function<void()>;
  using TimerId = uint64_t;  // 0 is never a timer

  EventLoop();
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Calls `readable` whenever `fd` is readable or closed by its peer, until Unwatch.
  void Watch(int fd, Callback readable);
  void Unwatch(int fd);
  // Calls `then` once, `delay` from now or later, on the monotonic clock. Cancel ignores a timer that has run
  // or does not exist.
  TimerId After(absl::Duration delay, Callback then);
  void Cancel(TimerId id);
  // Runs `call` on the loop's thread. This is the only method that any thread may call.
  void Post(Callback call);

  // Runs callbacks until Stop is called.
  void Run();
  void Stop() { stopped_ = true; }
  // Runs callbacks until `done()` is true or `limit` has passed; returns whether `done()` was true. For
  // start-up and tests.
  bool RunUntil(const std::function<bool()>& done, absl::Duration limit);

 private:
  void RunOnce(absl::Duration until);
  void RunPosted();
  void RunTimers();

  int wake_fd_;
  bool stopped_ = false;
  std::map<int, Callback> watched_;
  TimerId next_timer_ = 1;
  std::map<std::pair<absl::Duration, TimerId>, Callback> timers_;  // by due time, see SteadyNow
  std::map<TimerId, absl::Duration> due_;

  std::mutex mutex_;
  std::vector<Callback> posted_;  // guarded by mutex_
};

}  // namespace scalelab::worker
