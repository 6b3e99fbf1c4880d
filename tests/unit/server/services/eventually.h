// Waits for conditions that no event reports.
#pragma once

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/time/clock.h"

namespace scalelab::server {

// Calls `condition` every few milliseconds until it returns true. Returns false after ten seconds of the
// steady clock, which tests that set the wall clock do not change.
template <typename Condition>
bool Eventually(const Condition& condition) {
  const Clock& clock = Clock::System();
  for (const absl::Duration end = clock.Steady() + absl::Seconds(10); clock.Steady() < end;) {
    if (condition()) return true;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return condition();
}

}  // namespace scalelab::server
