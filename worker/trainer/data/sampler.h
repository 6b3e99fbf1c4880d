// Which samples a rank trains on in which step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace scalelab::trainer {

// Each epoch is one permutation of all samples, drawn from (seed, epoch) alone. Step k of the epoch trains on
// its k-th `global_batch` samples, whatever the number of ranks; rank r takes the r-th contiguous slice of
// them. The samples that do not fill a last global batch are left out of that epoch.
class ShardedSampler {
 public:
  ShardedSampler(int64_t samples, int64_t global_batch, int rank, int ranks, uint64_t seed);

  int64_t steps_per_epoch() const { return samples_ / global_batch_; }
  void StartEpoch(int64_t epoch);
  // This rank's samples of a step of the epoch, counted from 0; valid until the next StartEpoch.
  std::span<const int32_t> Slice(int64_t step) const;

 private:
  int64_t samples_, global_batch_, slice_;
  int rank_;
  uint64_t seed_;
  std::vector<int32_t> order_;
};

}  // namespace scalelab::trainer
