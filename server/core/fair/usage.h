// What users have used of the cluster, with and without decay. Pure.
//
// Usage that was h (the half-life) ago counts half. A user who holds n nodes from a to b has at a later time t
//
//   decayed usage = n * h / ln 2 * (2^-((t - b) / h) - 2^-((t - a) / h))    node-seconds,
//
// the integral of n * 2^-((t - s) / h) over s from a to b. So the result does not depend on when, or in how many parts,
// the time is charged.
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
  Weight weight = Weight::kNodes;  // which usage decides whose study is next
  bool operator==(const FairShare&) const = default;
};

// Nodes and GPUs that a user holds in a time.
struct Holding {
  std::string owner, partition;
  int nodes = 0, gpus = 0;
  db::Micros from = 0, until = 0;

  double seconds() const { return until > from ? 1e-6 * static_cast<double>(until - from) : 0; }
};

// Returns the number of seconds that the time from `from` until `until` counts at `now`.
double DecayedSeconds(db::Micros from, db::Micros until, db::Micros now, absl::Duration half_life);

// The number of GPU-seconds in each hour, by hours since 1970.
using GpuHours = std::map<int64_t, double>;
// Adds the GPU-seconds of the holding to its hours.
void AddHours(const Holding& holding, GpuHours& hours);
// Returns the sum of the seven days before `now`. The first hour counts as a whole.
double SumOfWeek(const GpuHours& hours, db::Micros now);

// The usage that is charged and stored.
class UsageLedger {
 public:
  // Replaces everything by these rows.
  void Restore(const db::ServiceState& service);
  void set_half_life(absl::Duration half_life) { half_life_ = half_life; }
  absl::Duration half_life() const { return half_life_; }

  // Charges the owner. Adds the changed rows to `batch`.
  void Charge(const Holding& holding, db::Micros now, db::WriteBatch& batch);
  // Returns what the owner has used, with the decayed numbers at `now`.
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
