// Distributed data parallel: gradients are averaged in buckets while backward still runs.
#pragma once

#include <exception>
#include <utility>

#include "worker/trainer/strategies/gradient_buckets.h"
#include "worker/trainer/strategies/strategy.h"

namespace scalelab::trainer {

// The grad() of each parameter is a view of its bucket. A hook behind each parameter's gradient accumulator
// counts the bucket down; a full bucket is handed to the communicator once all buckets before it are, because
// all ranks must start the same operations in the same order. After backward the rest is started (parameters
// that took no part leave zeros) and everything is waited for.
class DdpStrategy : public Strategy {
 public:
  DdpStrategy(Model& model, Communicator& communicator, int64_t bucket_cap_bytes);
  ~DdpStrategy() override;

  BackwardCost Backward(const at::Tensor& loss) override;
  void SyncBuffers() override;

  const std::vector<GradientBucket>& buckets() const { return buckets_; }

 private:
  class ReadyHook;
  // A shared_ptr in LibTorch 1.13, an intrusive_ptr in later ones.
  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

  void GradientReady(int bucket);  // called by autograd
  void StartFullBuckets();

  Model& model_;
  Communicator& communicator_;
  std::vector<at::Tensor> parameters_;
  std::vector<GradientBucket> buckets_;
  std::vector<Accumulator> accumulators_;  // autograd itself holds them weakly
  std::vector<uintptr_t> hooks_;
  size_t next_ = 0;  // bucket to start next
  std::vector<std::unique_ptr<Work>> started_;
};

}  // namespace scalelab::trainer
