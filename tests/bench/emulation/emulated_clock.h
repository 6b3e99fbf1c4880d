// A clock with emulated time for coroutines. One thread runs the coroutines, one after the other.
#pragma once

#include <time.h>

#include <algorithm>
#include <coroutine>
#include <cstdint>
#include <queue>
#include <vector>

namespace scalelab::bench {

class EmulatedClock {
 public:
  // `dilation`: the number of real seconds for an emulated second. The coroutines then really wait, and the
  // time of their own work passes too. With 0, time is virtual: it advances as soon as all coroutines wait,
  // so that it does not depend on the speed of the machine.
  explicit EmulatedClock(double dilation = 0) : dilation_(dilation), begin_(RealSeconds()) {}

  double now() const { return dilation_ > 0 ? (RealSeconds() - begin_) / dilation_ : now_; }
  // Resumes `waiting` at `time`. Coroutines with equal times are resumed in the order of the calls.
  void ResumeAt(double time, std::coroutine_handle<> waiting) { events_.push({time, calls_++, waiting}); }
  // Runs until no coroutine waits for a time.
  void Run() {
    while (!events_.empty()) {
      const Event next = events_.top();
      events_.pop();
      if (dilation_ > 0) AwaitReal(begin_ + next.time * dilation_);
      now_ = std::max(now_, next.time);
      next.waiting.resume();
    }
  }

  // co_await clock.Until(t): suspends until t, also if it has passed.
  auto Until(double time) {
    struct Awaitable {
      EmulatedClock& clock;
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

  static double RealSeconds() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
  }
  // A sleep ends about 50 us late, which is more than the time of a message. So sleep for a shorter time, and
  // then wait in a busy loop.
  static void AwaitReal(double time) {
    constexpr double kBusy = 2e-4;
    if (const double wait = time - RealSeconds() - kBusy; wait > 0) {
      const auto whole = static_cast<time_t>(wait);
      const timespec sleep{whole, static_cast<long>((wait - static_cast<double>(whole)) * 1e9)};
      clock_nanosleep(CLOCK_MONOTONIC, 0, &sleep, nullptr);
    }
    while (RealSeconds() < time) {
    }
  }

  const double dilation_, begin_;
  double now_ = 0;
  int64_t calls_ = 0;
  std::priority_queue<Event> events_;
};

}  // namespace scalelab::bench
