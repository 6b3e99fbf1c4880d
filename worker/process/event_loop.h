// The worker's one thread: file descriptors, timers and calls posted by other threads, one callback at a
// time. All state of the worker lives on it, so none of it is locked.
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
  using TimerId = uint64_t;  // 0 is no timer

  EventLoop();
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Calls `readable` whenever `fd` can be read or is closed at the other end, until Unwatch.
  void Watch(int fd, Callback readable);
  void Unwatch(int fd);
  // Calls `then` once, after `delay` at the earliest. Cancelling a timer that is gone does nothing.
  TimerId After(absl::Duration delay, Callback then);
  void Cancel(TimerId id);
  // The only method that any thread may call: `call` runs on the loop's thread.
  void Post(Callback call);

  // Serves until Stop.
  void Run();
  void Stop() { stopped_ = true; }
  // Serves until `done` or `limit`; says whether it was `done`. For start-up and tests.
  bool RunUntil(const std::function<bool()>& done, absl::Duration limit);

 private:
  void RunOnce(absl::Time until);
  void RunPosted();
  void RunTimers();

  int wake_fd_;
  bool stopped_ = false;
  std::map<int, Callback> watched_;
  TimerId next_timer_ = 1;
  std::map<std::pair<int64_t, TimerId>, Callback> timers_;  // by due time in ns of the monotonic clock
  std::map<TimerId, int64_t> due_;

  std::mutex mutex_;
  std::vector<Callback> posted_;  // guarded by mutex_
};

}  // namespace scalelab::worker
