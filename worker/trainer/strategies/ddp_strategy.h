// Distributed data parallel: averages gradients in buckets while backward runs.
#pragma once

#include "worker/trainer/strategies/bucket_times.h"
#include "worker/trainer/strategies/gradient_buckets.h"
#include "worker/trainer/strategies/gradient_hooks.h"
#include "worker/trainer/strategies/gradient_reducer.h"
#include "worker/trainer/strategies/gradient_squares.h"
#include "worker/trainer/strategies/strategy.h"

namespace scalelab::trainer {

struct DdpOptions {
  BucketCaps caps = {};
  // Starts full buckets while backward runs. Without it (native/serial) all buckets start after backward; the
  // difference in time is what overlap hides.
  bool overlap = true;
  // Searches each step's graph for parameters without a gradient, so that no bucket waits for them.
  bool find_unused = false;
  // Excludes parameters from the buckets that had no gradient on any rank in the first step. They must never
  // get one later.
  bool static_graph = false;
  // Measures the buckets of the last steps, for AppendMetrics of the first rank. Must be false if steps are recorded
  // into a CUDA graph, whose moments have no times, or if a bucket is not reduced by one all-reduce.
  bool record_buckets = false;
  // Copies the gradients of a bucket into it when the bucket is full, all in one operation: on a GPU a kernel
  // copies many of them. Without it each gradient is copied when it arrives, while it is in a CPU's cache.
  bool copy_whole_buckets = false;
};

// The grad() of each parameter is a view of its bucket. A hook on each gradient accumulator counts the
// missing gradients of the bucket. A full bucket is passed to the reducer once all buckets before it
// are, because all ranks must start the same operations in the same order. After backward the remaining
// buckets are started (parameters without a gradient contribute zeros), and all operations are awaited.
//
// After the first step the buckets are rebuilt in the order in which rank 0's gradients arrived. The last
// bucket carries one more number per parameter, "got a gradient". The average of these numbers shows which
// parameters got no gradient on any rank, without a separate operation.
class DdpStrategy : public GradientStrategy {
 public:
  // Without a `reducer`, gradients are averaged as they are.
  DdpStrategy(Model& model, Communicator& communicator, const DdpOptions& options,
              std::unique_ptr<GradientReducer> reducer = nullptr);

  void Accumulate(const at::Tensor& loss) override;
  BackwardCost Backward(const at::Tensor& loss) override;
  void DiscardStep() override;
  void SyncBuffers() override;
  std::string WhyNotRecorded() const override;
  Stored stored() const override { return Stored::kOnce; }
  // The order of parameters in buckets, which decides in which order the gradients of ranks are added up; and the state of the
  // reducer.
  NamedTensors State() override;
  void LoadState(const std::vector<NamedTensors>& of_ranks) override;
  void AppendMetrics(std::vector<Metric>& metrics) const override;

  // Returns the buckets of the last step.
  const std::vector<GradientBucket>& buckets() const { return buckets_; }

 private:
  enum class Order { kDeclared, kArriving, kFinal };  // order of parameters in buckets

  void BeginStep();
  void RebuildBuckets();
  void MakeBuckets(const std::vector<int>& order);
  void GradientReady(int parameter);  // called by autograd
  void TakeIntoBucket(int parameter);
  void TakeAllIntoBucket(const GradientBucket& bucket);
  void CountDown(int parameter);
  void StartFullBuckets();
  bool AllUsed() const;
  bool DropsAreKnown() const;  // the parameters that no rank uses were found in an earlier step
  void DropUnused();

  Communicator& communicator_;
  const DdpOptions options_;
  const std::unique_ptr<GradientReducer> reducer_;
  std::vector<at::Tensor> parameters_;
  std::vector<GradientBucket> buckets_;
  std::vector<int> bucket_of_;       // by parameter; -1: in no bucket
  std::vector<at::Tensor> view_of_;  // by parameter; undefined: in no bucket

  bool in_step_ = false;        // gradients are being accumulated
  bool synchronising_ = false;  // hooks count missing gradients
  std::vector<float> used_;     // by parameter: 1 if it got a gradient in this step
  size_t next_ = 0;             // next bucket to start
  std::vector<std::unique_ptr<Work>> started_;
  GradientSquares rank_squares_;  // of the buckets that are started
  BucketTimes times_;

  Order order_ = Order::kDeclared;
  std::vector<int> arrived_;      // parameters in the order of their gradients in the first step
  std::vector<bool> never_used_;  // by parameter; set after the first step of a static graph
  GradientHooks hooks_;           // last member: uses all of the above
};

}  // namespace scalelab::trainer
