// The timers of one simulated process. They do not fire while the process is stopped or after it was killed.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tests/simulation/event_queue.h"

namespace scalelab::simulation {

class Timers {
 public:
  explicit Timers(EventQueue& queue) : queue_(queue), state_(std::make_shared<State>()) {}
  ~Timers() { Kill(); }
  Timers(const Timers&) = delete;

  void After(absl::Duration delay, std::function<void()> then) { queue_.After(delay, Bind(std::move(then))); }
  // Returns a function that calls `then`. If the process is stopped, `then` is called when it continues; if
  // it was killed, `then` is not called.
  std::function<void()> Bind(std::function<void()> then) {
    return [state = state_, then = std::move(then)] {
      if (state->killed) return;
      if (state->stops > 0) {
        state->waiting.push_back(then);
      } else {
        then();
      }
    };
  }
  void Stop() { ++state_->stops; }
  void Continue() {
    if (state_->stops == 0 || --state_->stops > 0) return;
    for (auto& then : std::exchange(state_->waiting, {}))
      queue_.After(absl::ZeroDuration(), Bind(std::move(then)));
  }
  void Kill() { state_->killed = true; }
  // Returns a function that returns whether the process was killed; it may outlive this object.
  std::function<bool()> Killed() const {
    return [state = state_] { return state->killed; };
  }

 private:
  struct State {
    bool killed = false;
    int stops = 0;
    std::vector<std::function<void()>> waiting;
  };
  EventQueue& queue_;
  const std::shared_ptr<State> state_;
};

}  // namespace scalelab::simulation
