// The queue of studies that need an allocation. Order: highest priority first; within a priority, the owner
// with the least recent usage first; then the oldest study first.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/time/time.h"

namespace scalelab::server {

class FairQueue {
 public:
  // The usage of an owner decays by half in each `half_life`.
  explicit FairQueue(absl::Duration half_life = absl::Hours(24 * 7)) : half_life_(half_life) {}

  // Add does nothing when the study is in the queue, Remove when it is not.
  void Add(int64_t study, int priority, const std::string& owner, const std::string& partition = "");
  void Remove(int64_t study);
  bool Contains(int64_t study) const { return where_.contains(study); }
  size_t size() const { return where_.size(); }

  // Returns the first study whose owner and partition `may_start` allows, without removing it; nothing if there
  // is none.
  using MayStart = std::function<bool(const std::string& owner, const std::string& partition)>;
  std::optional<int64_t> Next(absl::Time now, const MayStart& may_start = {}) const;
  // Returns the studies of the same owner and partition that are ahead of `study`, in order. Takes time proportional
  // to their number; meant for explanations.
  std::vector<int64_t> Before(int64_t study) const;

  // Adds to the usage of `owner`, in core-seconds.
  void Charge(const std::string& owner, double core_seconds, absl::Time now);
  double Usage(const std::string& owner, absl::Time now) const;

 private:
  struct Used {
    double core_seconds = 0;
    absl::Time at;
  };
  struct Place {
    int priority;
    std::string owner, partition;
  };
  using Partitions = std::map<std::string, std::set<int64_t>>;
  using Owners = std::map<std::string, Partitions>;

  absl::Duration half_life_;
  std::map<int, Owners, std::greater<>> by_priority_;
  std::unordered_map<int64_t, Place> where_;
  std::unordered_map<std::string, Used> used_;
};

}  // namespace scalelab::server
