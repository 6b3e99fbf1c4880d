// The queue of studies that need an allocation. Order: highest priority first; within a priority, the owner
// with the least recent usage first; then the oldest study first.
#pragma once

#include <cstdint>
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
  void Add(int64_t study, int priority, const std::string& owner);
  void Remove(int64_t study);
  bool Contains(int64_t study) const { return where_.contains(study); }
  size_t size() const { return where_.size(); }

  // Returns the first study without removing it, or nothing when the queue is empty.
  std::optional<int64_t> Next(absl::Time now) const;
  // Returns the studies ahead of `study`, in order, as if usage did not change meanwhile. Takes time
  // proportional to the length of the queue; meant for explanations.
  std::vector<int64_t> Before(int64_t study, absl::Time now) const;

  // Adds to the usage of `owner`, in core-seconds.
  void Charge(const std::string& owner, double core_seconds, absl::Time now);
  double Usage(const std::string& owner, absl::Time now) const;

 private:
  struct Used {
    double core_seconds = 0;
    absl::Time at;
  };
  using Owners = std::map<std::string, std::set<int64_t>>;

  absl::Duration half_life_;
  std::map<int, Owners, std::greater<>> by_priority_;
  std::unordered_map<int64_t, std::pair<int, std::string>> where_;
  std::unordered_map<std::string, Used> used_;
};

}  // namespace scalelab::server
