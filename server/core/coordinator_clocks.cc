// The time that does not count for timeouts: when the process did not run or took no calls, and when the wall clock was set.
#include <algorithm>
#include <utility>

#include "server/core/coordinator.h"

namespace scalelab::server {
namespace {

// The timeouts are moved when the process has not served for this long in sum.
constexpr absl::Duration kWorthMoving = absl::Seconds(1);
// A round of this length takes no report meanwhile.
constexpr absl::Duration kLongRound = absl::Milliseconds(200);
// The service notes once a second that it takes calls. After this time without a note it does not.
constexpr absl::Duration kLongestNote = absl::Seconds(3);
// A larger difference between the two clocks' progress means that the wall clock was set, or that the machine
// was suspended. NTP corrects smaller errors gradually.
constexpr absl::Duration kClockJump = absl::Seconds(1);

}  // namespace

void Coordinator::ObserveClocks() {
  const absl::Duration planned = NextStep();
  const absl::Time wall = options_.clock->Wall();
  const absl::Duration steady = options_.clock->Steady();
  // A commit took long, or the process was stopped or had no processor: workers could not report meanwhile.
  absl::Duration late = absl::ZeroDuration();
  if (round_end_ - steady_ > kLongRound) late = round_end_ - steady_;
  if (planned != -absl::InfiniteDuration())
    late += std::max(steady - std::max(planned, round_end_), absl::ZeroDuration());
  late_ += late;
  unserved_ += std::max(TakeUnserved(steady) - late, absl::ZeroDuration());
  absl::Duration gap = absl::ZeroDuration();
  if (late_ > kWorthMoving) gap += std::exchange(late_, absl::ZeroDuration());
  const absl::Duration jump = (wall - now_) - (steady - steady_);
  const bool jumped = absl::AbsDuration(jump) > kClockJump;
  if (jumped) gap += jump;
  if (gap != absl::ZeroDuration()) {
    lifecycle_->MoveTimeouts(absl::ToInt64Microseconds(gap), jumped ? absl::ToInt64Microseconds(jump) : 0);
  }
  if (unserved_ > kWorthMoving) {
    lifecycle_->MoveWorkerTimeouts(absl::ToInt64Microseconds(std::exchange(unserved_, absl::ZeroDuration())));
  }
  now_ = wall;
  steady_ = steady;
}

absl::Duration Coordinator::TakeUnserved(absl::Duration now) {
  if (TakesCalls()) return absl::ZeroDuration();
  const absl::Duration from = std::max(absl::Nanoseconds(serving_at_.load()), counted_until_);
  counted_until_ = now;
  return now - from;
}

bool Coordinator::TakesCalls() const {
  const int64_t noted = serving_at_.load();
  return noted == 0 || options_.clock->Steady() - absl::Nanoseconds(noted) <= kLongestNote;
}

void Coordinator::NoteServing() { serving_at_ = absl::ToInt64Nanoseconds(options_.clock->Steady()); }

}  // namespace scalelab::server
