// The measured values of a cell.
#pragma once

#include <cstddef>
#include <vector>

namespace scalelab::analysis {

// The values of one cell, with the block of each value in ascending order.
struct Sample {
  std::vector<int> block;
  std::vector<double> value;
  std::vector<double>
      time;  // when each value was measured, in seconds; has fewer elements if some times are unknown

  size_t size() const { return value.size(); }
  bool HasTimes() const { return time.size() == value.size(); }
};

// Restricts samples to the blocks that all of them have.
std::vector<Sample> InCommonBlocks(const std::vector<const Sample*>& samples);

}  // namespace scalelab::analysis
