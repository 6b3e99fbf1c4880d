#include "worker/trainer/strategies/horovod/response_cache.h"

namespace scalelab::trainer::horovod {

ResponseCache::Match ResponseCache::Find(const Request& request, int64_t* slot) const {
  const auto found = slots_.find(request.name);
  *slot = found == slots_.end() ? -1 : found->second;
  if (*slot < 0) return Match::kMiss;
  return entries_[*slot]->request == request ? Match::kHit : Match::kChanged;
}

const Request& ResponseCache::Use(int64_t slot) {
  entries_[slot]->used = ++uses_;
  return entries_[slot]->request;
}

int64_t ResponseCache::Put(const Request& request) {
  if (capacity_ == 0) return -1;
  int64_t place = 0;  // the first free slot, or the least recently used slot if none is free
  for (int64_t s = 0; s < slots() && holds(place); ++s) {
    if (!holds(s) || entries_[s]->used < entries_[place]->used) place = s;
  }
  if (entries_.empty() || (holds(place) && slots() < capacity_)) {
    place = slots();
    entries_.emplace_back();
  }
  if (holds(place)) Erase(place);
  slots_[request.name] = place;
  entries_[place] = {request, ++uses_};
  return place;
}

void ResponseCache::Erase(int64_t slot) {
  slots_.erase(entries_[slot]->request.name);
  entries_[slot].reset();
}

}  // namespace scalelab::trainer::horovod
