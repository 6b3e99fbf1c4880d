// ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054, section 5): each rank stores only a part of the
// optimizer's state. In stage 2, it also stores only a part of the gradients, and in stage 3 also only a part
// of the parameters.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "worker/trainer/strategies/gathered_parameters.h"
#include "worker/trainer/strategies/gradient_buckets.h"
#include "worker/trainer/strategies/gradient_hooks.h"
#include "worker/trainer/strategies/gradient_reducer.h"
#include "worker/trainer/strategies/gradient_squares.h"
#include "worker/trainer/strategies/strategy.h"

namespace scalelab::trainer {

struct ZeroOptions {
  int stage = 1;
  int64_t bucket_bytes = 25 << 20;
  // Searches each step's graph for parameters without a gradient, so that no bucket waits for them.
  bool find_unused = false;
  // The parameters without a gradient are the same in every step.
  bool static_graph = false;
  at::ScalarType wire_type = at::kFloat;  // type of gradients while they are communicated
};

// Each bucket of parameters is one block of memory, which is divided into equal parts, one for each rank.
// When all gradients of a bucket have arrived, a reduce-scatter computes the mean of each rank's own part.
// The optimizer updates this part, and an all-gather distributes the result.
//
// Stage 1 accumulates gradients of the whole model, and reduces them once in each step. If gradients are
// compressed, a GradientReducer averages the whole bucket, and the rank uses its own part of the mean: a
// matrix is compressed as a whole, so a reduce-scatter is not possible.
//
// Stage 2 reduces after every micro-batch and accumulates only the rank's own part. It frees the memory of a
// bucket's gradients as soon as they are reduced. In addition to incomplete buckets, at most kInFlight
// buckets have such memory at a time.
//
// Stage 3 is stage 2 with GatheredParameters. From EndEpoch to the next step, each rank has all parameters.
class ZeroStrategy : public Strategy {
 public:
  // In stage 1, `reducer` compresses gradients, unless it is null. In the other stages it must be null.
  ZeroStrategy(Model& model, Communicator& communicator, const ZeroOptions& options,
               std::unique_ptr<GradientReducer> reducer = nullptr);

  void Step(StepTask& task) override;
  void EndEpoch() override;
  std::vector<at::Tensor> Trained() override;
  void SyncBuffers() override;
  std::string WhyNotRecorded() const override {
    return "ZeRO's engines allocate memory in each step; use native/ddp";
  }
  Stored stored() const override { return Stored::kShards; }
  std::vector<Shard> Shards() override;
  // Returns which parameters a static graph never uses, and the state of the reducer.
  NamedTensors State() override;
  // Distributes the parameters of the shards.
  void LoadState(const std::vector<NamedTensors>& of_ranks) override;
  ModelMemory Memory(const ModelMemory& found) const override;
  ModelMemory MemoryByFormula(double parameters) const override;
  void AppendMetrics(std::vector<Metric>& metrics) const override;

 private:
  static constexpr size_t kInFlight = 2;

  // The part of a parameter that belongs to this rank.
  struct Piece {
    int parameter;
    int64_t offset;    // position in the rank's part of the bucket
    at::Tensor value;  // the tensor that the optimizer updates
  };
  struct Bucket {
    std::vector<int> parameters;
    std::vector<int64_t> offsets;   // positions of the parameters, in elements
    at::Tensor values, own_values;  // own_values is a part of `values`; in stage 3, a copy of this part
    at::Tensor gradients;           // in the layout of `values`; undefined while it has no memory
    at::Tensor own_gradients;       // the mean over the ranks, in the layout of `own_values`
    std::vector<Piece> pieces;
    int missing = 0;  // number of gradients of the current pass that have not arrived
  };
  struct Reduction {
    size_t bucket;
    at::Tensor input, output;  // undefined with a reducer, which changes the bucket's gradients in place
    std::unique_ptr<Work> work;
  };

  void MakeBuckets();
  void Allocate(Bucket& bucket);
  void BeginStep();
  void BeginPass(const at::Tensor& loss);
  void EndPass();
  at::Tensor ViewOf(const Bucket& bucket, size_t k, const at::Tensor& flat) const;
  void GradientReady(int parameter);  // called by autograd
  void CountDown(int parameter);
  void StartFullBuckets();
  void StartNextReduction();
  void StartReduction(size_t index);
  // Starts to average the gradients of a bucket with the reducer.
  std::unique_ptr<Work> StartReducer(const Bucket& bucket);
  void FinishReduction();
  // Agrees with the other ranks on the parameters without a gradient, and returns the squared norm of the
  // mean.
  at::Tensor AgreeOnUnused();
  void GatherParameters();

  Model& model_;
  Communicator& communicator_;
  const ZeroOptions options_;
  const std::unique_ptr<GradientReducer> reducer_;  // may be null
  std::vector<at::Tensor> parameters_;
  std::vector<Bucket> buckets_;
  std::vector<std::pair<size_t, size_t>> place_of_;  // by parameter: bucket, and position in it
  std::vector<double> used_;                         // by parameter: 1 if it has a gradient in this step
  std::vector<bool> never_used_;                     // by parameter; set by the first step with static_graph
  bool reducing_ = false;                            // whether hooks count missing gradients
  bool reduced_before_ = false;                      // whether an earlier pass of this step has been reduced
  size_t next_ = 0;                                  // next bucket to start
  std::vector<Reduction> reductions_;                // reductions in flight, in the order of their start
  BackwardCost cost_;
  GradientSquares rank_squares_, own_squares_;
  BucketMemory memory_;
  std::unique_ptr<GatheredParameters> gathered_;  // set in stage 3
  GradientHooks hooks_;                           // the last member, because the hooks use all others
};

}  // namespace scalelab::trainer
