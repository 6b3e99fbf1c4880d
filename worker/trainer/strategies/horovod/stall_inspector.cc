#include "worker/trainer/strategies/horovod/stall_inspector.h"

#include <cstdio>
#include <utility>

namespace scalelab::trainer::horovod {

std::vector<std::string> StallInspector::Inspect(const std::vector<Waiting>& waiting) {
  std::vector<std::string> reports;
  std::map<std::string, int64_t> reported;  // leaves out tensors that no longer wait
  for (const Waiting& one : waiting) {
    if (!Stalled(one.seconds)) continue;
    const auto limits = static_cast<int64_t>(one.seconds / limit_);
    const auto last = reported_.find(one.name);
    reported[one.name] = limits;
    if (last != reported_.end() && last->second >= limits) continue;
    std::string ranks;
    for (int rank : one.missing) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%.3g", one.seconds);
    reports.push_back("tensor \"" + one.name + "\" has waited " + seconds + " s for rank " + ranks +
                      ": that rank is slow, stopped, or does not compute this gradient");
  }
  reported_ = std::move(reported);
  return reports;
}

}  // namespace scalelab::trainer::horovod
