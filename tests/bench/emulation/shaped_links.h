// Links that move real bytes between coroutines, at the speed of a token bucket.
#pragma once

#include <algorithm>
#include <coroutine>
#include <deque>
#include <utility>
#include <vector>

#include "tests/bench/emulation/emulated_clock.h"

namespace scalelab::bench {

// A token bucket: `burst` bytes pass at once, more at `seconds_per_byte`.
class TokenBucket {
 public:
  TokenBucket(double seconds_per_byte, double burst) : seconds_per_byte_(seconds_per_byte), burst_(burst) {}
  // Returns the time when the last of `bytes` has passed, if the sender begins at `now`.
  double Pass(double now, double bytes) {
    full_at_ = std::max(full_at_, now) + bytes * seconds_per_byte_;
    return std::max(now, full_at_ - burst_ * seconds_per_byte_);
  }

 private:
  const double seconds_per_byte_, burst_;
  double full_at_ = 0;  // when the bucket is full again
};

// The messages of one sender to one receiver, in order.
class Mailbox {
 public:
  explicit Mailbox(EmulatedClock& clock) : clock_(clock) {}

  // Delivers `data` at `arrival`, but not before earlier messages.
  void Send(double arrival, std::vector<float> data) {
    last_ = std::max(last_, arrival);
    messages_.emplace_back(last_, std::move(data));
    if (waiting_) clock_.ResumeAt(last_, std::exchange(waiting_, {}));
  }
  // co_await mailbox.Receive() returns the next message when it has arrived.
  auto Receive() {
    struct Awaitable {
      Mailbox& mailbox;
      bool await_ready() const { return false; }
      void await_suspend(std::coroutine_handle<> waiting) {
        if (mailbox.messages_.empty()) {
          mailbox.waiting_ = waiting;
        } else {
          mailbox.clock_.ResumeAt(mailbox.messages_.front().first, waiting);
        }
      }
      std::vector<float> await_resume() {
        std::vector<float> data = std::move(mailbox.messages_.front().second);
        mailbox.messages_.pop_front();
        return data;
      }
    };
    return Awaitable{*this};
  }

 private:
  EmulatedClock& clock_;
  double last_ = 0;
  std::deque<std::pair<double, std::vector<float>>> messages_;
  std::coroutine_handle<> waiting_;
};

}  // namespace scalelab::bench
