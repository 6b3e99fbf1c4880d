// Virtual time: a queue of events, and the two clocks that the coordinator reads.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <tuple>

#include "server/time/clock.h"
#include "tests/simulation/random.h"

namespace scalelab::simulation {

class EventQueue final : public server::Clock {
 public:
  using Event = std::function<void()>;

  explicit EventQueue(Random& random) : random_(random) {}

  // Runs `event` after `delay`. Events of the same time run in an order drawn from the seed.
  void After(absl::Duration delay, Event event) {
    const absl::Duration due = now_ + std::max(delay, absl::ZeroDuration());
    events_.emplace(std::tuple(due, random_.Next(), ++number_), std::move(event));
  }
  // Runs the next event if it is due until `end`. Otherwise advances the time to `end` and returns false. An
  // event may call this function itself to simulate a blocking call: the other events run meanwhile.
  bool RunNext(absl::Duration end) {
    if (events_.empty() || std::get<0>(events_.begin()->first) > end) {
      now_ = std::max(now_, end);
      return false;
    }
    auto next = events_.extract(events_.begin());
    now_ = std::max(now_, std::get<0>(next.key()));
    next.mapped()();
    return true;
  }
  void RunUntil(absl::Duration end) {
    while (RunNext(end)) {
    }
  }

  absl::Duration Steady() const override { return now_; }
  absl::Time Wall() const override { return absl::FromUnixSeconds(1'800'000'000) + now_ + wall_offset_; }
  // Returns the time of day on machines whose clocks are correct.
  absl::Time TrueWall() const { return absl::FromUnixSeconds(1'800'000'000) + now_; }
  void SetWall(absl::Duration change) { wall_offset_ += change; }

 private:
  Random& random_;
  absl::Duration now_ = absl::ZeroDuration();
  absl::Duration wall_offset_ = absl::ZeroDuration();
  uint64_t number_ = 0;
  std::map<std::tuple<absl::Duration, uint64_t, uint64_t>, Event> events_;
};

}  // namespace scalelab::simulation
