// Assigns samples to ranks and steps.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace scalelab::trainer {

// Whether samples that do not fill the last global batch of an epoch are dropped or make one
// more, smaller step.
enum class LastBatch { kDrop, kKeep };

// Each epoch is one permutation of all samples, drawn from (seed, epoch) alone. Step k of the epoch trains
// on its k-th `global_batch` samples, for any number of ranks; rank r takes the r-th contiguous slice of
// them. Slices of a smaller last batch differ by at most one sample; a last batch with fewer samples than
// ranks is always dropped.
class ShardedSampler {
 public:
  ShardedSampler(int64_t samples, int64_t global_batch, int rank, int ranks, uint64_t seed,
                 LastBatch last = LastBatch::kDrop);

  int64_t steps_per_epoch() const { return (used_ + global_batch_ - 1) / global_batch_; }
  int64_t samples_per_epoch() const { return used_; }
  // Returns the number of samples over all ranks in a step; steps of the epoch count from 0.
  int64_t GlobalBatch(int64_t step) const;
  void StartEpoch(int64_t epoch);
  // Returns this rank's samples of a step of the epoch; valid until the next StartEpoch.
  std::span<const int32_t> Slice(int64_t step) const;

 private:
  int64_t samples_, global_batch_;
  int rank_, ranks_;
  uint64_t seed_;
  int64_t used_;  // samples in an epoch
  std::vector<int32_t> order_;
};

}  // namespace scalelab::trainer
