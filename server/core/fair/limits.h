// Limits of the configuration for users and partitions. Pure.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace scalelab::server {

// The limits of one user in one partition.
struct LimitSet {
  static constexpr double kNone = std::numeric_limits<double>::infinity();

  // Allocations that are submitted and have not started. With more of them, the scheduler's order would replace that of
  // the fair queue.
  double pending_allocations = 4;
  double running_allocations = kNone;
  double runs = kNone;  // that are executed at the same time
  double gpu_hours_per_week = kNone;
};

// Replaces the limits that it contains, for one user or all of them, in one partition or all of them.
struct LimitRule {
  std::optional<std::string> user, partition;
  std::optional<double> pending_allocations, running_allocations, runs, gpu_hours_per_week;
  bool operator==(const LimitRule&) const = default;
};

struct Limits {
  std::vector<LimitRule> rules;  // later ones take precedence
  // Pending allocations of all users in one partition.
  double partition_pending_allocations = LimitSet::kNone;

  // Returns the limits of the user in the partition (empty: the default partition).
  LimitSet For(const std::string& user, const std::string& partition) const;
  bool operator==(const Limits&) const = default;
};

// What a user has in a partition.
struct Use {
  int pending_allocations = 0;
  int pending_in_partition = 0;  // of all users
  int running_allocations = 0;
  int runs = 0;  // that are executed, and that allocations without a run are about to begin
  double gpu_hours_week = 0;
};

// Returns why the user gets no further allocation in the partition, as one sentence with the limit, its value and the use.
// Returns an empty text if no limit is reached.
std::string ReachedLimit(const Limits& limits, const std::string& user, const std::string& partition,
                         const Use& use);

}  // namespace scalelab::server
