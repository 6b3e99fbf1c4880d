// The measured values of a cell.
#pragma once

#include <cstddef>
#include <vector>

#include "db/records.h"

namespace scalelab::analysis {

// The values of one cell, with the block of each value in ascending order.
struct Sample {
  std::vector<int> block;
  std::vector<double> value;
  std::vector<double>
      time;  // when each value was measured, in seconds; has fewer elements if some times are unknown

  size_t size() const { return value.size(); }
  bool HasTimes() const { return time.size() == value.size(); }
  // Reserves memory for `count` values with their times.
  void Reserve(size_t count) {
    block.reserve(count);
    value.reserve(count);
    time.reserve(count);
  }
};

// Returns for each repeat its number among the repeats in which a run has succeeded, or -1 if none has. These
// numbers are the blocks of samples: the bootstrap must not draw a repeat without results, and a drift must not be
// fitted to fewer blocks than have results.
std::vector<int> BlockOfRepeat(const std::vector<db::CurveRow>& rows);

// Returns the number of repeats in which a run has succeeded.
int BlocksWithResults(const std::vector<int>& block_of_repeat);

// Restricts samples to the blocks that all of them have.
std::vector<Sample> InCommonBlocks(const std::vector<const Sample*>& samples);

}  // namespace scalelab::analysis
