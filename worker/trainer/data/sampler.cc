#include "worker/trainer/data/sampler.h"

#include <numeric>
#include <utility>

#include "worker/trainer/data/random.h"

namespace scalelab::trainer {

ShardedSampler::ShardedSampler(int64_t samples, int64_t global_batch, int rank, int ranks, uint64_t seed)
    : samples_(samples),
      global_batch_(global_batch),
      slice_(global_batch / ranks),
      rank_(rank),
      seed_(seed),
      order_(samples) {}

void ShardedSampler::StartEpoch(int64_t epoch) {
  std::iota(order_.begin(), order_.end(), 0);
  Random random(seed_, static_cast<uint64_t>(epoch), /*purpose=*/0);
  for (int64_t i = samples_ - 1; i > 0; --i) std::swap(order_[i], order_[random.Below(i + 1)]);
}

std::span<const int32_t> ShardedSampler::Slice(int64_t step) const {
  return std::span(order_).subspan(step * global_batch_ + rank_ * slice_, slice_);
}

}  // namespace scalelab::trainer
