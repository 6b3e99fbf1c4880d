// Finds time that must not count for timeouts: the process did not run or handled no calls, or the wall
// clock was set.
#include <algorithm>
#include <utility>

#include "server/core/coordinator.h"

namespace scalelab::server {
namespace {

// The timeouts are moved when the process has handled no requests for this time in total.
constexpr absl::Duration kWorthMoving = absl::Seconds(1);
// Workers cannot report during a round that takes longer than this.
constexpr absl::Duration kLongRound = absl::Milliseconds(200);
// The service calls NoteServing once a second while it handles calls. After this time without a call of
// NoteServing, the service is considered to handle no calls.
constexpr absl::Duration kLongestNote = absl::Seconds(3);
// If the two clocks advance by times that differ more than this, the wall clock was set or the machine was
// suspended. NTP corrects smaller errors gradually.
constexpr absl::Duration kClockJump = absl::Seconds(1);

}  // namespace

void Coordinator::ObserveClocks() {
  const absl::Duration planned = NextStep();
  const absl::Time wall = options_.clock->Wall();
  const absl::Duration steady = options_.clock->Steady();
  // `late` is time in which workers could not report, because a commit took long or the process did not run.
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
