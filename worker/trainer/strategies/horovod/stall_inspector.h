// Reports the ranks for which tensors wait. Pure: callers pass the time.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "worker/trainer/strategies/horovod/negotiation.h"

namespace scalelab::trainer::horovod {

class StallInspector {
 public:
  // `warning_seconds` is the time limit; 0 disables reports.
  explicit StallInspector(double warning_seconds) : limit_(warning_seconds) {}

  bool Stalled(double seconds) const { return limit_ > 0 && seconds >= limit_; }

  // Returns a warning for each tensor whose waiting time has reached the limit, and another one at each
  // further multiple of the limit.
  std::vector<std::string> Inspect(const std::vector<Waiting>& waiting);

 private:
  double limit_;
  // By waiting tensor: its waiting time at the last report, in multiples of the limit.
  std::map<std::string, int64_t> reported_;
};

}  // namespace scalelab::trainer::horovod
