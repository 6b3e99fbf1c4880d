#include "server/time/clock.h"

#include <chrono>

#include "absl/time/clock.h"

namespace scalelab::server {
namespace {

class SystemClock final : public Clock {
 public:
  absl::Time Wall() const override { return absl::Now(); }
  absl::Duration Steady() const override {
    return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
  }
};

}  // namespace

const Clock& Clock::System() {
  static const SystemClock clock;
  return clock;
}

}  // namespace scalelab::server
