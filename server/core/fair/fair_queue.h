// The queue of studies that need an allocation. The order is by priority, highest first; then by the usage of
// the owner, least first; then by age, oldest first.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/functional/function_ref.h"

namespace scalelab::server {

class FairQueue {
 public:
  // Add does nothing if the study is in the queue. Remove does nothing if it is not.
  void Add(int64_t study, int priority, const std::string& owner, const std::string& partition = "");
  void Remove(int64_t study);
  bool Contains(int64_t study) const { return where_.contains(study); }
  size_t size() const { return where_.size(); }

  // Returns the usage of an owner.
  using UsageOf = absl::FunctionRef<double(const std::string& owner)>;
  // Returns whether studies of an owner and partition may get an allocation.
  using MayStart = absl::FunctionRef<bool(const std::string& owner, const std::string& partition)>;
  // Returns the first study that may start, without removing it; nothing if there is none.
  std::optional<int64_t> Next(UsageOf usage, MayStart may_start) const;
  // Returns the first `limit` studies in the order of Next, if all may start and the usage does not change.
  std::vector<int64_t> Order(UsageOf usage, size_t limit) const;
  // Returns the studies of the same owner and partition that are before `study`, in order. Takes time
  // proportional to their number; for explanations only.
  std::vector<int64_t> Before(int64_t study) const;

 private:
  struct Place {
    int priority;
    std::string owner, partition;
  };
  using Partitions = std::map<std::string, std::set<int64_t>>;
  using Owners = std::map<std::string, Partitions>;

  std::map<int, Owners, std::greater<>> by_priority_;
  std::unordered_map<int64_t, Place> where_;
};

}  // namespace scalelab::server
