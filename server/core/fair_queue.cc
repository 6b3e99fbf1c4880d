#include "server/core/fair_queue.h"

#include <algorithm>
#include <cmath>
#include <utility>

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

std::vector<int64_t> FairQueue::Before(int64_t study, absl::Time now) const {
  std::vector<int64_t> before;
  const auto it = where_.find(study);
  if (it == where_.end()) return before;
  const auto& [priority, owner] = it->second;
  const std::pair own(Usage(owner, now), study);
  for (const auto& [p, owners] : by_priority_) {
    if (p < priority) break;
    std::vector<std::pair<double, int64_t>> places;  // by usage, then first come
    for (const auto& [other, studies] : owners) {
      const double usage = Usage(other, now);
      for (const int64_t id : studies) {
        if (p == priority && std::pair(usage, id) >= own) break;
        places.emplace_back(usage, id);
      }
    }
    std::sort(places.begin(), places.end());
    for (const auto& place : places) before.push_back(place.second);
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
