// The wall clock and the steady clock. Simulations and tests replace them.
#pragma once

#include "absl/time/time.h"

namespace scalelab::server {

class Clock {
 public:
  virtual ~Clock() = default;
  // Returns the time of day, which an administrator or NTP may set forward or back.
  virtual absl::Time Wall() const = 0;
  // Returns the time since an arbitrary start. Never decreases.
  virtual absl::Duration Steady() const = 0;

  // Returns the clocks of this machine.
  static const Clock& System();
};

}  // namespace scalelab::server
