// Distributed data parallel: gradients are averaged in buckets while backward still runs.
#pragma once

#include "worker/trainer/strategies/gradient_buckets.h"
#include "worker/trainer/strategies/gradient_hooks.h"
#include "worker/trainer/strategies/strategy.h"

namespace scalelab::trainer {

struct DdpOptions {
  BucketCaps caps = {};
  // Start full buckets while backward runs. Without it (native/serial) all start after backward: the
  // difference is what overlap hides.
  bool overlap = true;
  // Search each step's graph for parameters without a gradient, so that no bucket waits for them.
  bool find_unused = false;
  // The parameters without a gradient on any rank in the first step never get one: they have no place in a
  // bucket from then on.
  bool static_graph = false;
};

// The grad() of each parameter is a view of its bucket. A hook behind each parameter's gradient accumulator
// counts the bucket down; a full bucket is handed to the communicator once all buckets before it are, because
// all ranks must start the same operations in the same order. After backward the rest is started (parameters
// that took no part leave zeros) and everything is waited for.
//
// After the first step buckets are made anew in the order in which rank 0's gradients arrived. The last
// bucket carries one number a parameter, "got a gradient": its average tells all ranks which parameters got
// none anywhere, without an operation of its own.
class DdpStrategy : public Strategy {
 public:
  DdpStrategy(Model& model, Communicator& communicator, const DdpOptions& options);

  void Accumulate(const at::Tensor& loss) override;
  BackwardCost Backward(const at::Tensor& loss) override;
  void SyncBuffers() override;
  std::string WhyNotRecorded() const override;

  // Those of the last step.
  const std::vector<GradientBucket>& buckets() const { return buckets_; }

 private:
  enum class Order { kDeclared, kArriving, kFinal };  // of parameters in buckets

  void BeginStep();
  void RebuildBuckets();
  void MakeBuckets(const std::vector<int>& order);
  void GradientReady(int parameter);  // called by autograd
  void TakeIntoBucket(int parameter);
  void CountDown(int parameter);
  void StartFullBuckets();
  bool AllUsed() const;
  void DropUnused();

  Model& model_;
  Communicator& communicator_;
  const DdpOptions options_;
  std::vector<at::Tensor> parameters_;
  std::vector<GradientBucket> buckets_;
  std::vector<int> bucket_of_;       // by parameter; -1: none
  std::vector<at::Tensor> view_of_;  // by parameter; undefined: none

  bool in_step_ = false;        // gradients are being added up
  bool synchronising_ = false;  // hooks count down
  std::vector<float> used_;     // by parameter: 1 if it got a gradient in this step
  size_t next_ = 0;             // bucket to start next
  std::vector<std::unique_ptr<Work>> started_;

  Order order_ = Order::kDeclared;
  std::vector<int> arrived_;      // parameters in the order of their gradients, first step
  std::vector<bool> never_used_;  // agreed on after the first step of a static graph
  GradientHooks hooks_;           // last: they use all of the above
};

}  // namespace scalelab::trainer
