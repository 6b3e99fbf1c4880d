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
  // Starts full buckets while backward runs. If false (native/serial), all buckets start after backward. The
  // difference in time is the communication that overlap hides.
  bool overlap = true;
  // Searches each step's graph for parameters without a gradient, so that no bucket waits for them.
  bool find_unused = false;
  // Excludes from the buckets the parameters that had no gradient on any rank in the first step. They must
  // have no gradient in later steps.
  bool static_graph = false;
  // Measures the buckets of the last steps for AppendMetrics on the first rank. Must be false if
  // steps are recorded into a CUDA graph, whose events have no times, or if a bucket is reduced by
  // more than one operation.
  bool record_buckets = false;
  // Copies all gradients of a bucket in one operation when the bucket is full, because a GPU kernel can copy
  // many of them. If false, each gradient is copied when it arrives, while it is in the cache of the CPU.
  bool copy_whole_buckets = false;
  // Measures the squared norms of gradients, if the reducer only rounds them.
  bool measure_squares = true;
};

// The grad() of each parameter is a view of its bucket. A hook on each gradient accumulator counts the
// missing gradients of the bucket. A full bucket is passed to the reducer after all earlier buckets,
// because all ranks must start the same operations in the same order. After backward the remaining
// buckets are started, in which parameters without a gradient contribute zeros. Then the strategy waits
// for all operations.
//
// After the first step the buckets are rebuilt in the order in which rank 0's gradients arrived. The last
// bucket has an additional number for each parameter, which is 1 if the parameter has a gradient. The average
// of these numbers shows which parameters have no gradient on any rank, without a separate operation.
class DdpStrategy : public GradientStrategy {
 public:
  // If `reducer` is null, gradients are averaged exactly.
  DdpStrategy(Model& model, Communicator& communicator, const DdpOptions& options,
              std::unique_ptr<GradientReducer> reducer = nullptr);

  void Accumulate(const at::Tensor& loss) override;
  BackwardCost Backward(const at::Tensor& loss) override;
  void DiscardStep() override;
  void SyncBuffers() override;
  std::string WhyNotRecorded() const override;
  Stored stored() const override { return Stored::kOnce; }
  // Returns the order of parameters in buckets, which determines the order of additions in an all-reduce, and
  // the state of the reducer.
  NamedTensors State() override;
  void LoadState(const std::vector<NamedTensors>& of_ranks) override;
  // The errors of the reducer count as gradients.
  ModelMemory Memory(const ModelMemory& found) const override;
  ModelMemory MemoryByFormula(double parameters) const override;
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
  bool MeasuresSquares() const { return options_.measure_squares && reducer_->only_rounds(); }
  bool AllUsed() const;
  bool DropsAreKnown() const;  // whether an earlier step has found the parameters that no rank uses
  void DropUnused();

  Communicator& communicator_;
  const DdpOptions options_;
  const std::unique_ptr<GradientReducer> reducer_;
  std::vector<at::Tensor> parameters_;
  std::vector<GradientBucket> buckets_;
  std::vector<int> bucket_of_;       // by parameter; -1: in no bucket
  std::vector<at::Tensor> view_of_;  // by parameter; undefined: in no bucket

  bool in_step_ = false;        // whether gradients are being accumulated
  bool synchronising_ = false;  // whether hooks count missing gradients
  std::vector<float> used_;     // by parameter: 1 if it has a gradient in this step
  size_t next_ = 0;             // next bucket to start
  std::vector<std::unique_ptr<Work>> started_;
  GradientSquares rank_squares_;  // squares of the buckets that have been started
  BucketTimes times_;

  Order order_ = Order::kDeclared;
  std::vector<int> arrived_;      // parameters in the order of their gradients in the first step
  std::vector<bool> never_used_;  // by parameter; set after the first step of a static graph
  GradientHooks hooks_;           // the last member, because the hooks use all others
};

}  // namespace scalelab::trainer
