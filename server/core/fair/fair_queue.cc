#include "server/core/fair/fair_queue.h"

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

std::optional<int64_t> FairQueue::Next(UsageOf usage, MayStart may_start) const {
  for (const auto& [priority, owners] : by_priority_) {
    std::optional<std::pair<double, int64_t>> best;  // usage, study
    for (const auto& [owner, partitions] : owners) {
      for (const auto& [partition, studies] : partitions) {
        if (!may_start(owner, partition)) continue;
        const std::pair candidate(usage(owner), *studies.begin());
        if (!best || candidate < *best) best = candidate;
      }
    }
    if (best) return best->second;
  }
  return std::nullopt;
}

std::vector<int64_t> FairQueue::Order(UsageOf usage, size_t limit) const {
  FairQueue rest = *this;
  std::vector<int64_t> order;
  const auto all = [](const std::string&, const std::string&) { return true; };
  while (order.size() < limit) {
    const std::optional<int64_t> next = rest.Next(usage, all);
    if (!next) break;
    order.push_back(*next);
    rest.Remove(*next);
  }
  return order;
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

}  // namespace scalelab::server
