// A clock for the timeouts of operations between ranks, which does not count time in which the process was
// stopped.
#pragma once

#include <chrono>
#include <functional>
#include <mutex>

namespace scalelab::trainer {

// Does not advance while the process is stopped, for example by SIGSTOP when Slurm suspends the job. Otherwise
// the ranks would time out when the job continues. It does not advance for kResume afterwards either, because
// the processes of a run do not continue at the same moment, and the first one would report the others as
// stopped.
//
// The clock detects a stop by the time between two calls of Now. Therefore a thread must call Now several
// times a second while a timeout is running. Stops shorter than kStop are not detected, so they count. A node
// that hangs for longer is treated like a stop. Threads may call Now concurrently.
class RunningClock {
 public:
  using Steady = std::chrono::steady_clock;
  using duration = Steady::duration;
  using time_point = std::chrono::time_point<RunningClock, duration>;

  static constexpr std::chrono::seconds kStop{2}, kResume{10};

  // Tests pass another `source`.
  explicit RunningClock(std::function<Steady::time_point()> source = &Steady::now)
      : source_(std::move(source)) {}

  time_point Now() {
    std::lock_guard lock(mutex_);
    const Steady::time_point now = source_();
    if (last_ == Steady::time_point()) last_ = now;
    if (now - last_ > kStop) resumed_ = now + kResume;
    if (now >= resumed_) running_ += now - last_;
    last_ = now;
    return running_;
  }

 private:
  const std::function<Steady::time_point()> source_;
  std::mutex mutex_;            // guards the members below
  Steady::time_point last_;     // the time of the last call
  Steady::time_point resumed_;  // the end of kResume after the last stop
  time_point running_;
};

// The end of a timeout that begins when the object is created. A thread must call Over several times a second.
class Deadline {
 public:
  explicit Deadline(RunningClock::duration timeout) : end_(clock_.Now() + timeout) {}
  bool Over() { return clock_.Now() >= end_; }

 private:
  RunningClock clock_;
  const RunningClock::time_point end_;
};

}  // namespace scalelab::trainer
