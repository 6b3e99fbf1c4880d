#include "server/core/state.h"

namespace scalelab::server {
namespace {

template <typename Map>
auto* Find(const Map& map, int64_t id) {
  const auto it = map.find(id);
  return it == map.end() ? nullptr : it->second.get();
}

}  // namespace

LiveStudy* State::study(int64_t id) const { return Find(studies, id); }
LiveAttempt* State::attempt(int64_t id) const { return Find(attempts, id); }
LiveAllocation* State::allocation(int64_t id) const { return Find(allocations, id); }

PendingQueue QueueOf(const LiveStudy& study) { return {study.row.owner, study.spec.resources().partition()}; }

}  // namespace scalelab::server
