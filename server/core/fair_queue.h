// Who goes next: highest priority first; within a priority the owner who used least lately; then first come.
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
  // Half of what an owner used is forgotten after this time.
  explicit FairQueue(absl::Duration half_life = absl::Hours(24 * 7)) : half_life_(half_life) {}

  // Adding what is there or removing what is not changes nothing.
  void Add(int64_t study, int priority, const std::string& owner);
  void Remove(int64_t study);
  bool Contains(int64_t study) const { return where_.contains(study); }
  size_t size() const { return where_.size(); }

  // The next study, or nothing; stays in the queue.
  std::optional<int64_t> Next(absl::Time now) const;
  // The studies that go before `study`, the first one first: what Next would give one after another if nobody
  // used anything meanwhile. Takes time in their number; for explanations.
  std::vector<int64_t> Before(int64_t study, absl::Time now) const;

  // Books core-seconds of `owner`.
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
