#include "server/core/fair/limits.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace scalelab::server {

LimitSet Limits::For(const std::string& user, const std::string& partition) const {
  LimitSet set;
  for (const LimitRule& rule : rules) {
    if (rule.user.value_or(user) != user || rule.partition.value_or(partition) != partition) continue;
    set.pending_allocations = rule.pending_allocations.value_or(set.pending_allocations);
    set.running_allocations = rule.running_allocations.value_or(set.running_allocations);
    set.runs = rule.runs.value_or(set.runs);
    set.gpu_hours_per_week = rule.gpu_hours_per_week.value_or(set.gpu_hours_per_week);
  }
  return set;
}

std::string ReachedLimit(const Limits& limits, const std::string& user, const std::string& partition,
                         const Use& use) {
  const LimitSet set = limits.For(user, partition);
  const auto place = [&] {
    return partition.empty() ? std::string("the default partition") : absl::StrCat("partition ", partition);
  };
  const auto of_user = [&] { return absl::StrCat(" of ", user, " in ", place(), " is reached: "); };
  if (use.pending_allocations >= set.pending_allocations) {
    return absl::StrCat("the limit pending_allocations", of_user(), use.pending_allocations, " of ",
                        set.pending_allocations,
                        " jobs wait at the scheduler; another is submitted when one of ", "them starts");
  }
  if (use.running_allocations + use.pending_allocations >= set.running_allocations) {
    return absl::StrCat("the limit running_allocations", of_user(), use.running_allocations, " run and ",
                        use.pending_allocations, " wait at the scheduler, the limit is ",
                        set.running_allocations, "; another is submitted when one of them ends");
  }
  if (use.runs >= set.runs) {
    return absl::StrCat("the limit runs", of_user(), use.runs, " of ", set.runs,
                        " runs are executed or about to begin; another begins when one of them ends");
  }
  if (use.gpu_hours_week >= set.gpu_hours_per_week) {
    return absl::StrFormat(
        "the limit gpu_hours_per_week%s%.4g of %.4g GPU-hours were used in the last seven days; wait until "
        "some of "
        "these days have passed",
        of_user(), use.gpu_hours_week, set.gpu_hours_per_week);
  }
  if (use.pending_in_partition >= limits.partition_pending_allocations) {
    return absl::StrCat(
        "the limit partition_pending_allocations of ", place(), " is reached: ", use.pending_in_partition,
        " of ", limits.partition_pending_allocations,
        " jobs of all users wait at the scheduler; the next one in the queue is submitted when one of ",
        "them starts");
  }
  return "";
}

}  // namespace scalelab::server
