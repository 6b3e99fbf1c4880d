// Emulated time for coroutines. One thread runs them, one after the other.
#pragma once

#include <algorithm>
#include <coroutine>
#include <cstdint>
#include <queue>
#include <vector>

namespace scalelab::bench {

// Time advances as soon as all coroutines wait, so it does not depend on the speed of the machine.
class VirtualClock {
 public:
  double now() const { return now_; }
  // Resumes `waiting` at `time`. Coroutines with equal times are resumed in the order of the calls.
  void ResumeAt(double time, std::coroutine_handle<> waiting) { events_.push({time, calls_++, waiting}); }
  // Runs until no coroutine waits for a time.
  void Run() {
    while (!events_.empty()) {
      const Event next = events_.top();
      events_.pop();
      now_ = std::max(now_, next.time);
      next.waiting.resume();
    }
  }

  // co_await clock.Until(t): suspends until t, also if it has passed.
  auto Until(double time) {
    struct Awaitable {
      VirtualClock& clock;
      double time;
      bool await_ready() const { return false; }
      void await_suspend(std::coroutine_handle<> waiting) { clock.ResumeAt(time, waiting); }
      void await_resume() const {}
    };
    return Awaitable{*this, time};
  }

 private:
  struct Event {
    double time;
    int64_t call;
    std::coroutine_handle<> waiting;
    bool operator<(const Event& other) const {
      return time != other.time ? time > other.time : call > other.call;
    }
  };

  double now_ = 0;
  int64_t calls_ = 0;
  std::priority_queue<Event> events_;
};

}  // namespace scalelab::bench
