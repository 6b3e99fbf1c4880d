#include "server/fair_queue.h"

#include <cmath>

namespace scalelab::server {

void FairQueue::Add(int64_t study, int priority, const std::string& owner) {
  if (!where_.emplace(study, std::make_pair(priority, owner)).second) return;
  by_priority_[priority][owner].insert(study);
}

void FairQueue::Remove(int64_t study) {
  const auto it = where_.find(study);
  if (it == where_.end()) return;
  const auto& [priority, owner] = it->second;
  Owners& owners = by_priority_[priority];
  owners[owner].erase(study);
  if (owners[owner].empty()) owners.erase(owner);
  if (owners.empty()) by_priority_.erase(priority);
  where_.erase(it);
}

std::optional<int64_t> FairQueue::Next(absl::Time now) const {
  if (by_priority_.empty()) return std::nullopt;
  const Owners& owners = by_priority_.begin()->second;
  const std::set<int64_t>* best = nullptr;
  double least = 0;
  for (const auto& [owner, studies] : owners) {
    const double usage = Usage(owner, now);
    if (best == nullptr || usage < least || (usage == least && *studies.begin() < *best->begin())) {
      best = &studies;
      least = usage;
    }
  }
  return *best->begin();
}

size_t FairQueue::Ahead(int64_t study, absl::Time now) const {
  const auto it = where_.find(study);
  if (it == where_.end()) return 0;
  const auto& [priority, own] = it->second;
  size_t ahead = 0;
  for (const auto& [p, owners] : by_priority_) {
    if (p < priority) break;
    for (const auto& [owner, studies] : owners) {
      if (p > priority)
        ahead += studies.size();
      else if (owner == own)
        ahead += std::distance(studies.begin(), studies.lower_bound(study));
      else if (Usage(owner, now) < Usage(own, now))
        ++ahead;  // at least its next one
    }
  }
  return ahead;
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
