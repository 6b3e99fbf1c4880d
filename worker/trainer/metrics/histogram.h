// The distribution of whole numbers.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/trainer/torch.h"

namespace scalelab::trainer {

// Counts how often each number was added. The mean and the maximum are exact for all numbers.
class Histogram {
 public:
  // Each number below kBins - 1 has a bin of its own. All larger numbers are in the last bin.
  static constexpr int64_t kBins = 1024;
  // The position of the maximum in State.
  static constexpr int64_t kMost = 2;

  // Adds a number, which must not be negative.
  void Add(int64_t number);

  int64_t count() const { return count_; }
  int64_t most() const { return most_; }
  // Returns the mean; there must be a number.
  double Mean() const { return sum_ / static_cast<double>(count_); }
  // Returns the smallest number that at least `percent` percent of all numbers do not exceed, and kBins - 1 if it is in the last
  // bin. Returns 0 if there are no numbers.
  int64_t Percentile(int percent) const;

  // Returns the sum, the count, the maximum and the count of each bin, in double precision. A sum of states is the state of all
  // numbers, except for the maximum.
  at::Tensor State() const;
  // Adds the numbers of another histogram. A state without bins, which an earlier version of the trainer wrote, changes only the
  // mean and the maximum.
  void AddState(const at::Tensor& state);

 private:
  double sum_ = 0;
  int64_t count_ = 0, most_ = 0;
  std::vector<int64_t> bins_ = std::vector<int64_t>(kBins);
};

}  // namespace scalelab::trainer
