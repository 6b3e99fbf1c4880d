// Pipeline parallelism: different ranks compute different layers of a model.
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
  int64_t stages = 0;  // 0: the number of ranks
  pipeline::Schedule schedule = pipeline::Schedule::k1f1b;
  int64_t parts = 1;   // number of micro-batches of a full batch
  int64_t warmup = 0;  // number of steps that are not measured
};

// Rank r has stage r % stages of group r / stages. The ranks of a group train on the same samples, each with
// a contiguous part of the model's blocks. Rank 0 measures the blocks, and divides them so that the slowest
// stage is as fast as possible. A step sends activations from stage to stage and their gradients back, and
// then averages the gradients of equal stages over the groups. If several stages have the same parameter (the
// token embedding of gpt), its gradient is the sum over these stages, and each of them updates the parameter.
//
// Each rank stores the whole model for evaluation. After an epoch, all ranks receive the parameters and
// buffers of each stage from its rank in group 0. A rank stores gradients, the optimizer's state and
// activations only for its own stage.
class PipelineStrategy : public Strategy {
 public:
  // Throws TrainerError if the model cannot be divided into this number of stages, or if the number of ranks
  // is not a multiple of it.
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
  // The first group stores the parameters of its stages. The first stage that has a parameter stores it.
  std::vector<Shard> Shards() override;
  void ShareShards(const std::vector<at::Tensor>& of_shards) override;
  void PrepareFor(const NamedTensors& state) override;
  // Distributes the buffers of all stages to all ranks, because another number of ranks would continue with
  // the buffers of rank 0.
  NamedTensors State() override;
  void LoadState(const std::vector<NamedTensors>& of_ranks) override;
  ModelMemory MemoryByFormula(double parameters) const override;
  void AppendMetrics(std::vector<Metric>& metrics) const override;

  // Returns the first block of each stage, followed by the number of blocks.
  const std::vector<size_t>& begins() const { return begins_; }

 private:
  // A parameter that this stage shares with other stages, and the ranks of these stages in this group.
  struct Tied {
    size_t position;  // index in parameters_
    std::unique_ptr<Communicator> owners;
  };

  bool last() const { return stage_ == stages_ - 1; }
  // Return the tensors of a stage without duplicates.
  std::vector<at::Tensor> ParametersOf(int stage) const;
  std::vector<at::Tensor> BuffersOf(int stage) const;
  // Divides the model into the stages that begins_ describes.
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
  // By part, until its backward pass. The output of the last stage is the loss.
  std::vector<at::Tensor> inputs_, outputs_;
  pipeline::IdleTime idle_;
};

}  // namespace scalelab::trainer
