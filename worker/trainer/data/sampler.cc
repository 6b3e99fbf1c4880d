#include "worker/trainer/data/sampler.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "worker/trainer/data/random.h"

namespace scalelab::trainer {

ShardedSampler::ShardedSampler(int64_t samples, int64_t global_batch, int rank, int ranks, uint64_t seed,
                               LastBatch last)
    : samples_(samples),
      global_batch_(global_batch),
      rank_(rank),
      ranks_(ranks),
      seed_(seed),
      used_(samples),
      order_(samples) {
  const int64_t rest = samples % global_batch;
  if (last == LastBatch::kDrop || rest < ranks) used_ -= rest;
}

int64_t ShardedSampler::GlobalBatch(int64_t step) const {
  return std::min(global_batch_, used_ - step * global_batch_);
}

void ShardedSampler::StartEpoch(int64_t epoch) {
  std::iota(order_.begin(), order_.end(), 0);
  Random random(seed_, static_cast<uint64_t>(epoch), /*purpose=*/0);
  for (int64_t i = samples_ - 1; i > 0; --i) std::swap(order_[i], order_[random.Below(i + 1)]);
}

std::span<const int32_t> ShardedSampler::Slice(int64_t step) const {
  const int64_t batch = GlobalBatch(step), first = batch * rank_ / ranks_;
  return std::span(order_).subspan(step * global_batch_ + first, batch * (rank_ + 1) / ranks_ - first);
}

}  // namespace scalelab::trainer
