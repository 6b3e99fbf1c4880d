// The wall clock and the steady clock. Simulations and tests replace them.
#pragma once

#include "absl/time/time.h"

namespace scalelab::server {

class Clock {
 public:
  virtual ~Clock() = default;
  // Returns the time of day, which an administrator or NTP may set forward or back.
  virtual absl::Time Wall() const = 0;
  // Returns the time since an arbitrary start (CLOCK_MONOTONIC), which is the same for all processes until the machine is
  // restarted. Never decreases. It stops while the machine is suspended, as the processes on it do.
  virtual absl::Duration Steady() const = 0;

  // Returns the clocks of this machine.
  static const Clock& System();
};

}  // namespace scalelab::server
