// What users hold and have used, and the order in which their studies are served. Computed from the state: from what is
// charged, and the time since then of the allocations that are held.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "server/core/state.h"

namespace scalelab::server {

// Returns what the allocation's owner has held since the last charge; nothing if the allocation has not started.
Holding Uncharged(const LiveAllocation& allocation, db::Micros now);
// Returns the GPU-seconds of all allocations of the study.
double GpuSecondsOf(const State& state, const LiveStudy& study, db::Micros now);

// The use of all users at one time. Refers to the state, which must outlive it; allocations that have been made since then
// count as pending.
class CurrentUse {
 public:
  CurrentUse(const State& state, db::Micros now);

  // Returns what the user has used. The decayed numbers are those of `now`.
  db::UsageRow UsageOf(const std::string& owner) const;
  // Returns the number that decides whose study is next: the decayed use of nodes or GPUs.
  double Share(const std::string& owner) const;
  Use UseOf(const PendingQueue& queue) const;
  // Returns why no further allocation is made for the queue; empty if one may be made.
  std::string ReachedLimit(const PendingQueue& queue) const;
  double GpuSecondsOfWeek(const std::string& owner) const;
  // Returns the owners and partitions in which something is used.
  std::vector<PendingQueue> queues() const;

 private:
  struct Held {
    int running = 0, idle = 0, attempts = 0;
    GpuHours hours;
  };
  double GpuSecondsOfWeek(const PendingQueue& queue) const;

  const State& state_;
  const db::Micros now_;
  std::map<PendingQueue, Held> held_;
  std::map<std::string, db::UsageRow> uncharged_;
};

// A study that waits for an allocation.
struct QueueEntry {
  const LiveStudy* study = nullptr;
  double owner_usage = 0;
  std::string reason;
};

// Returns the studies that wait, in the order in which they are served, then those that are held, paused or delayed.
std::vector<QueueEntry> ListQueue(const State& state, db::Micros now, size_t limit);

}  // namespace scalelab::server
