// Pipeline parallelism: the layers of a model on different ranks.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "worker/trainer/models/divisible_model.h"
#include "worker/trainer/strategies/group_gradients.h"
#include "worker/trainer/strategies/pipeline/idle_time.h"
#include "worker/trainer/strategies/pipeline/schedule.h"
#include "worker/trainer/strategies/pipeline/stage_link.h"
#include "worker/trainer/strategies/strategy.h"

namespace scalelab::trainer {

struct PipelineOptions {
  int64_t stages = 0;  // 0: as many as ranks
  pipeline::Schedule schedule = pipeline::Schedule::k1f1b;
  int64_t parts = 1;   // micro-batches of a full batch
  int64_t warmup = 0;  // steps that are not measured
};

// Rank r has stage r % stages of group r / stages. The ranks of a group train on the same samples, each with a contiguous
// part of the model's blocks, chosen so that the slowest stage is as fast as possible: rank 0 measures the blocks. A step
// sends activations from stage to stage and their gradients back, and then averages the gradients of equal stages over the
// groups. A parameter of several stages (the token embedding of gpt) has the sum of their gradients, and is updated on each.
//
// Each rank keeps the whole model, which is used for evaluation: after an epoch all ranks get the parameters and buffers of
// each stage from its rank in group 0. Gradients, the optimizer's state and activations exist for the rank's own stage only.
class PipelineStrategy : public Strategy {
 public:
  // Throws TrainerError if the model cannot be divided into so many stages, or the number of ranks is no multiple of them.
  PipelineStrategy(Model& model, Communicator& communicator, const PipelineOptions& options);

  void Step(StepTask& task) override;
  void EndEpoch() override;
  std::vector<at::Tensor> Trained() override;
  void SyncBuffers() override {}  // EndEpoch has distributed them
  DataSlice SliceOf(int rank, int ranks) const override;
  void ShareResult(const at::Tensor& loss_and_correct) override;
  std::string WhyNotRecorded() const override {
    return "engine native/pipeline sends activations from the host; use native/ddp";
  }
  Stored stored() const override { return Stored::kShards; }
  // The first group stores the parameters of its stages, each parameter on the first stage that has it.
  std::vector<Shard> Shards() override;
  void ShareShards(const std::vector<at::Tensor>& of_shards) override;
  void PrepareFor(const NamedTensors& state) override;
  // Gives all ranks the buffers of all stages, because another number of ranks continues with those of rank 0.
  NamedTensors State() override;
  void LoadState(const std::vector<NamedTensors>& of_ranks) override;
  void AppendMetrics(std::vector<Metric>& metrics) const override;

  // Returns the first block of each stage, and the number of blocks at the end.
  const std::vector<size_t>& begins() const { return begins_; }

 private:
  // A parameter that this and other stages have, and the ranks of these stages in this group.
  struct Tied {
    size_t position;  // in parameters_
    std::unique_ptr<Communicator> owners;
  };

  bool last() const { return stage_ == stages_ - 1; }
  // Returns the tensors of a stage, each once.
  std::vector<at::Tensor> ParametersOf(int stage) const;
  std::vector<at::Tensor> BuffersOf(int stage) const;
  // Makes the stages that begins_ describes.
  void MakeStages();
  void FindTiedParameters();
  void ShareBuffers();
  at::Tensor RunStage(at::Tensor x) const;
  void Forward(StepTask& task, int64_t part);
  void Backward(StepTask& task, int64_t part);
  int64_t ReduceGradients();

  DivisibleModel& model_;
  Communicator& communicator_;
  const PipelineOptions options_;
  const int stages_, stage_;
  std::vector<size_t> begins_;
  std::unique_ptr<Communicator> group_;   // the ranks of this group by stage; null if all ranks are one group
  std::unique_ptr<Communicator> equals_;  // the ranks of this stage by group; null if there is one group
  Communicator* pipe_ = nullptr;          // group_, or all ranks
  std::optional<pipeline::StageLink> previous_, next_;

  std::vector<at::Tensor> parameters_;  // of this stage
  std::unique_ptr<GroupGradients> gradients_;
  std::vector<Tied> tied_;
  std::vector<at::Tensor> inputs_,
      outputs_;  // by part, while its gradient is not computed; the loss on the last stage
  pipeline::IdleTime idle_;
};

}  // namespace scalelab::trainer
