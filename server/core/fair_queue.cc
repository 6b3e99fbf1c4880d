#include "server/core/fair_queue.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace scalelab::server {

void FairQueue::Add(int64_t study, int priority, const std::string& owner, const std::string& partition) {
  if (!where_.emplace(study, Place{priority, owner, partition}).second) return;
  by_priority_[priority][owner][partition].insert(study);
}

void FairQueue::Remove(int64_t study) {
  const auto it = where_.find(study);
  if (it == where_.end()) return;
  const auto& [priority, owner, partition] = it->second;
  Owners& owners = by_priority_[priority];
  Partitions& partitions = owners[owner];
  partitions[partition].erase(study);
  if (partitions[partition].empty()) partitions.erase(partition);
  if (partitions.empty()) owners.erase(owner);
  if (owners.empty()) by_priority_.erase(priority);
  where_.erase(it);
}

std::optional<int64_t> FairQueue::Next(absl::Time now, const MayStart& may_start) const {
  for (const auto& [priority, owners] : by_priority_) {
    std::optional<std::pair<double, int64_t>> best;  // usage, study
    for (const auto& [owner, partitions] : owners) {
      for (const auto& [partition, studies] : partitions) {
        if (may_start && !may_start(owner, partition)) continue;
        const std::pair candidate(Usage(owner, now), *studies.begin());
        if (!best || candidate < *best) best = candidate;
      }
    }
    if (best) return best->second;
  }
  return std::nullopt;
}

std::vector<int64_t> FairQueue::Before(int64_t study) const {
  std::vector<int64_t> before;
  const auto it = where_.find(study);
  if (it == where_.end()) return before;
  const auto& [priority, owner, partition] = it->second;
  for (const auto& [p, owners] : by_priority_) {
    if (p < priority) break;
    const auto partitions = owners.find(owner);
    if (partitions == owners.end()) continue;
    const auto studies = partitions->second.find(partition);
    if (studies == partitions->second.end()) continue;
    for (const int64_t id : studies->second) {
      if (p == priority && id >= study) break;
      before.push_back(id);
    }
  }
  return before;
}

void FairQueue::Charge(const std::string& owner, double core_seconds, absl::Time now) {
  used_[owner] = {Usage(owner, now) + core_seconds, now};
}

double FairQueue::Usage(const std::string& owner, absl::Time now) const {
  const auto it = used_.find(owner);
  if (it == used_.end()) return 0;
  const double halves = absl::FDivDuration(now - it->second.at, half_life_);
  return it->second.core_seconds * std::exp2(-std::max(0.0, halves));
}

}  // namespace scalelab::server
