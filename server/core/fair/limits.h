// The limits in the configuration for users and partitions. Pure functions.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace scalelab::server {

// The limits of one user in one partition.
struct LimitSet {
  static constexpr double kNone = std::numeric_limits<double>::infinity();

  // Allocations that are submitted and have not started. If there were many, the scheduler would decide their
  // order instead of the fair queue.
  double pending_allocations = 4;
  double running_allocations = kNone;
  double runs = kNone;  // runs that are executed at the same time
  double gpu_hours_per_week = kNone;
};

// Replaces some limits for one user or for all users, in one partition or in all partitions.
struct LimitRule {
  std::optional<std::string> user, partition;
  std::optional<double> pending_allocations, running_allocations, runs, gpu_hours_per_week;
  bool operator==(const LimitRule&) const = default;
};

struct Limits {
  std::vector<LimitRule> rules;  // later rules take precedence
  // Pending allocations of all users in one partition.
  double partition_pending_allocations = LimitSet::kNone;

  // Returns the limits of the user in the partition (empty: the default partition).
  LimitSet For(const std::string& user, const std::string& partition) const;
  bool operator==(const Limits&) const = default;
};

// The resources that a user has in a partition.
struct Use {
  int pending_allocations = 0;
  int pending_in_partition = 0;  // pending allocations of all users
  int running_allocations = 0;
  int runs = 0;  // runs that are executed, and runs that allocations without an attempt are about to begin
  double gpu_hours_week = 0;
};

// Returns why the user gets no further allocation in the partition, as one sentence with the limit, its value
// and the use. Returns "" if no limit is reached.
std::string ReachedLimit(const Limits& limits, const std::string& user, const std::string& partition,
                         const Use& use);

}  // namespace scalelab::server
