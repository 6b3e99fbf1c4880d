// A cache of negotiated tensors, each with a slot that is the same on all ranks. Pure: no communication.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "worker/trainer/strategies/horovod/messages.h"

namespace scalelab::trainer::horovod {

// All ranks must make the same calls of Put, Use and Erase in the same order, so that a slot has the same
// tensor on all ranks. Find changes nothing, and may be called at any time.
class ResponseCache {
 public:
  enum class Match { kMiss, kHit, kChanged };  // kChanged: another type or shape under this name

  explicit ResponseCache(int64_t capacity) : capacity_(capacity) {}

  // Looks up a tensor and sets `slot` to its slot, or to -1 on a miss.
  Match Find(const Request& request, int64_t* slot) const;

  // Returns one more than the highest slot ever used.
  int64_t slots() const { return static_cast<int64_t>(entries_.size()); }
  bool holds(int64_t slot) const { return entries_[slot].has_value(); }

  // Returns the tensor of an occupied slot and marks it as the most recently used one.
  const Request& Use(int64_t slot);
  // Adds a tensor that has no slot, and evicts the least recently used one if all slots are taken. Returns
  // its slot, or -1 if the capacity is 0.
  int64_t Put(const Request& request);
  void Erase(int64_t slot);

 private:
  struct Entry {
    Request request;
    uint64_t used = 0;
  };

  int64_t capacity_;
  uint64_t uses_ = 0;
  std::vector<std::optional<Entry>> entries_;
  std::unordered_map<std::string, int64_t> slots_;
};

}  // namespace scalelab::trainer::horovod
