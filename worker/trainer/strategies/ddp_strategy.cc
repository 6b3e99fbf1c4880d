#include "worker/trainer/strategies/ddp_strategy.h"

#include "worker/trainer/metrics/stopwatch.h"

namespace scalelab::trainer {

class DdpStrategy::ReadyHook : public torch::autograd::FunctionPostHook {
 public:
  ReadyHook(DdpStrategy& strategy, int bucket) : strategy_(strategy), bucket_(bucket) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    strategy_.GradientReady(bucket_);
    return outputs;
  }

 private:
  DdpStrategy& strategy_;
  int bucket_;
};

DdpStrategy::DdpStrategy(Model& model, Communicator& communicator, int64_t bucket_cap_bytes)
    : model_(model), communicator_(communicator) {
  for (const at::Tensor& parameter : model.parameters()) {
    communicator.Broadcast(parameter.detach(), 0);
    if (parameter.requires_grad()) parameters_.push_back(parameter);
  }
  SyncBuffers();

  for (const std::vector<int>& indices : AssignBuckets(parameters_, bucket_cap_bytes)) {
    const int number = static_cast<int>(buckets_.size());
    buckets_.push_back(MakeBucket(parameters_, indices));
    for (size_t k = 0; k < indices.size(); ++k) {
      at::Tensor& parameter = parameters_[indices[k]];
      parameter.mutable_grad() = buckets_.back().views[k];
      accumulators_.push_back(torch::autograd::impl::grad_accumulator(parameter));
      hooks_.push_back(accumulators_.back()->add_post_hook(std::make_unique<ReadyHook>(*this, number)));
    }
  }
}

DdpStrategy::~DdpStrategy() {
  for (size_t i = 0; i < hooks_.size(); ++i) accumulators_[i]->del_post_hook(hooks_[i]);
}

BackwardCost DdpStrategy::Backward(const at::Tensor& loss) {
  Stopwatch watch;
  BackwardCost cost;
  started_.clear();
  next_ = 0;
  for (GradientBucket& bucket : buckets_) {
    bucket.flat.zero_();  // accumulation adds in place, which keeps gradients in their buckets
    bucket.missing = static_cast<int>(bucket.parameters.size());
    cost.bytes += static_cast<int64_t>(bucket.flat.nbytes());
  }
  loss.backward();
  cost.compute_seconds = watch.Lap();

  for (GradientBucket& bucket : buckets_) bucket.missing = 0;
  StartFullBuckets();
  for (auto& work : started_) work->Wait();
  cost.exposed_seconds = watch.Lap();
  return cost;
}

void DdpStrategy::GradientReady(int bucket) {
  if (--buckets_[bucket].missing == 0) StartFullBuckets();
}

void DdpStrategy::StartFullBuckets() {
  for (; next_ < buckets_.size() && buckets_[next_].missing <= 0; ++next_) {
    started_.push_back(communicator_.StartAllReduce(buckets_[next_].flat, ReduceOp::kAverage));
  }
}

void DdpStrategy::SyncBuffers() {
  for (const at::Tensor& buffer : model_.buffers()) communicator_.Broadcast(buffer, 0);
}

}  // namespace scalelab::trainer
