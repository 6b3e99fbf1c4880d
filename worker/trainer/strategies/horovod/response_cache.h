// Tensors that were negotiated before, each with a slot that is the same on all ranks. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "worker/trainer/strategies/horovod/messages.h"

namespace scalelab::trainer::horovod {

// All ranks make the same calls of Put, Use and Erase in the same order, so that slots mean the same
// everywhere; Find changes nothing and may be called at will.
class ResponseCache {
 public:
  enum class Match { kMiss, kHit, kChanged };  // kChanged: this name with another type or shape

  explicit ResponseCache(int64_t capacity) : capacity_(capacity) {}

  // The slot of a tensor; -1 on a miss.
  Match Find(const Request& request, int64_t* slot) const;

  // One above the highest slot ever used.
  int64_t slots() const { return static_cast<int64_t>(entries_.size()); }
  bool holds(int64_t slot) const { return entries_[slot].has_value(); }

  // The tensor of an occupied slot, which becomes the last used one.
  const Request& Use(int64_t slot);
  // Remembers a tensor that has no slot; gives up the one used longest ago when all slots are taken.
  // Returns its slot; -1 with a capacity of 0.
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
