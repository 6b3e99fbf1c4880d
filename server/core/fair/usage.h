// The usage of the cluster by each user, with and without decay. Pure functions and classes.
//
// Usage counts half after the half-life h. A user who holds n nodes from time a to time b has, at a
// later time t,
//
//   decayed usage = n * h / ln 2 * (2^-((t - b) / h) - 2^-((t - a) / h))    node-seconds.
//
// This is the integral of n * 2^-((t - s) / h) over s from a to b. Therefore the result does not depend on
// when the time is charged, or in how many parts.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "db/store.h"

namespace scalelab::server {

struct FairShare {
  enum class Weight { kNodes, kGpus };
  absl::Duration half_life = absl::Hours(24 * 7);
  Weight weight = Weight::kNodes;  // the usage that determines the order of users
  bool operator==(const FairShare&) const = default;
};

// The nodes and GPUs that a user holds from one time until another.
struct Holding {
  std::string owner, partition;
  int nodes = 0, gpus = 0;
  db::Micros from = 0, until = 0;

  double seconds() const { return until > from ? 1e-6 * static_cast<double>(until - from) : 0; }
};

// Returns the decayed number of seconds, at `now`, of the time from `from` until `until`.
double DecayedSeconds(db::Micros from, db::Micros until, db::Micros now, absl::Duration half_life);

// The number of GPU-seconds in each hour, by hours since 1970.
using GpuHours = std::map<int64_t, double>;
// Adds the GPU-seconds of the holding to its hours.
void AddHours(const Holding& holding, GpuHours& hours);
// Returns the sum of the seven days before `now`. The first hour counts completely.
double SumOfWeek(const GpuHours& hours, db::Micros now);

// The charged usage of all users, which the database stores.
class UsageLedger {
 public:
  // Replaces all usage by the rows of `service`.
  void Restore(const db::ServiceState& service);
  void set_half_life(absl::Duration half_life) { half_life_ = half_life; }
  absl::Duration half_life() const { return half_life_; }

  // Charges the owner. Adds the changed rows to `batch`.
  void Charge(const Holding& holding, db::Micros now, db::WriteBatch& batch);
  // Returns the usage of the owner. The decayed numbers are computed for `now`.
  db::UsageRow At(const std::string& owner, db::Micros now) const;
  std::vector<std::string> owners() const;
  // Returns the owners and partitions in which GPUs were used.
  std::vector<std::pair<std::string, std::string>> queues() const;
  // Returns the GPU-seconds of the last seven days.
  double GpuSecondsOfWeek(const std::string& owner, const std::string& partition, db::Micros now) const;

 private:
  absl::Duration half_life_ = FairShare().half_life;
  std::map<std::string, db::UsageRow> rows_;
  std::map<std::pair<std::string, std::string>, GpuHours> hours_;  // by owner and partition
};

}  // namespace scalelab::server
