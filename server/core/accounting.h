// Computes the resources that users hold and have used, and the order in which their studies get allocations.
// The use is the charged use, plus the use of live allocations since their last charge.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "server/core/state.h"

namespace scalelab::server {

// Returns the nodes and GPUs of the allocation since its last charge; an empty time if it has not started.
Holding Uncharged(const LiveAllocation& allocation, db::Micros now);
// Returns the GPU-seconds of all allocations of the study.
double GpuSecondsOf(const State& state, const LiveStudy& study, db::Micros now);

// The use of all users at one time. Refers to the state, which must outlive it. Allocations that are made
// later count as pending.
class CurrentUse {
 public:
  CurrentUse(const State& state, db::Micros now);

  // Returns the use of the user. The decayed numbers are computed for `now`.
  db::UsageRow UsageOf(const std::string& owner) const;
  // Returns the decayed use of nodes or GPUs. The study of the user with the smallest number is next.
  double Share(const std::string& owner) const;
  Use UseOf(const PendingQueue& queue) const;
  // Returns why the queue may not get another allocation; "" if it may.
  std::string ReachedLimit(const PendingQueue& queue) const;
  double GpuSecondsOfWeek(const std::string& owner) const;
  // Returns the pairs of owner and partition for which any use is recorded.
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
  std::string order;   // priority and usage, which everybody may see
  std::string reason;  // `order`, the number of the study, and what it waits for
};

// Returns the waiting studies in the order in which they get allocations, followed by held, paused
// and delayed studies.
std::vector<QueueEntry> ListQueue(const State& state, db::Micros now, size_t limit);

}  // namespace scalelab::server
