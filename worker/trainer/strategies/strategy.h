// The interface of an engine: how ranks train one model together.
#pragma once

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "worker/trainer/comm/communicator.h"
#include "worker/trainer/device/moment.h"
#include "worker/trainer/metrics/event_writer.h"
#include "worker/trainer/metrics/step_log.h"
#include "worker/trainer/models/model.h"
#include "worker/trainer/named_tensors.h"
#include "worker/trainer/training_spec.h"

namespace scalelab::trainer {

// What one step measured.
struct BackwardCost {
  Moment computed;          // end of autograd's computation; the rest is communication
  int64_t bytes = 0;        // size of what was passed to the communicator
  std::vector<Span> spans;  // when gradients were communicated, by their ends
  // Squared norms of this rank's gradient and of the mean over the ranks: numbers of double precision on the device.
  // Undefined if the gradients are not averaged exactly.
  at::Tensor rank_square, mean_square;
};

// A part of a parameter that a rank updates: a view of the whole parameter's memory, which has the shape of `value`.
struct Shard {
  int parameter = 0;                   // its position among the model's parameters that need a gradient
  at::Tensor value;                    // a view of all that the optimizer updates
  int64_t first = 0;                   // elements of the whole parameter before it, in the order of memory
  std::vector<int64_t> strides = {1};  // in the whole parameter's memory
  bool stored = true;                  // in checkpoints; else another rank stores the same shard
};

// The samples of a rank: slice `index` of `count` of each global batch. Ranks that hold parts of one model have the same.
// Index -1: none; the rank does not train.
struct DataSlice {
  int index, count;
};
class Strategy;
// Returns how many of `ranks` ranks train on the same samples.
int RanksOfASlice(const Strategy& strategy, int ranks);

// One rank's part of a training step. The training loop implements it, and a strategy carries it out.
class StepTask {
 public:
  virtual ~StepTask() = default;

  // Returns the number of micro-batches, at least 1 on a rank that trains.
  virtual int64_t parts() const = 0;
  // Returns the number of micro-batches of the rank that has most, the same on all ranks. A last batch may give a rank fewer
  // samples than another, and so fewer micro-batches.
  virtual int64_t most_parts() const = 0;
  // Runs the model on micro-batch `part`, from 0, and returns its loss. The losses of all parts add up to the mean loss of
  // this rank's batch. If the strategy averages gradients, they are weighted by the rank's share of the global batch.
  virtual at::Tensor Forward(int64_t part) = 0;
  // For strategies that run parts of the model: returns the model's input of micro-batch `part`.
  virtual at::Tensor Input(int64_t /*part*/) const { throw std::logic_error("Input is missing"); }
  // Runs `stage`, a part of the model, on micro-batch `part` in the run's precision. Returns its output, or if it is the
  // `last` part, whose output are the logits, the loss that Forward returns. Called for all micro-batches in their order.
  virtual at::Tensor Run(int64_t /*part*/, const std::function<at::Tensor()>& /*stage*/, bool /*last*/) {
    throw std::logic_error("Run is missing");
  }
  // Takes what the step measured. Called after the last backward and before Update, when gradients are communicated.
  virtual void Measured(BackwardCost cost) = 0;
  // Updates the tensors of Strategy::Trained by their gradients.
  virtual void Update() = 0;
  // Returns the learning rate of the step.
  virtual double rate() const = 0;
  virtual StepMarks& marks() = 0;
};

// Trains a model together with the other ranks. Created after the model has its final device and memory format, and kept as
// long as the model trains. Constructors broadcast rank 0's parameters and buffers to all ranks.
class Strategy {
 public:
  virtual ~Strategy() = default;

  // Carries out one step: forward and backward of all parts, synchronisation, and the optimizer. Discards the gradients of
  // the step before. Collective.
  virtual void Step(StepTask& task) = 0;

  // Forgets a step that an exception ended, so that the next Step begins anew.
  virtual void DiscardStep() {}

  // Returns the samples on which rank `rank` of `ranks` trains. A rank that does not train calls Step with a task of no parts.
  virtual DataSlice SliceOf(int rank, int ranks) const { return {rank, ranks}; }

  // Runs the model on a micro-batch, for StepTask::Forward.
  virtual TrainingLogits Forward(Model& model, const at::Tensor& images) {
    return model.ForwardTraining(images);
  }

  // Replaces the mean loss and the number of correct predictions of a step (two numbers in double precision on the device) on
  // a rank that has not computed them, by those of the rank that has. Called after each Step. Collective.
  virtual void ShareResult(const at::Tensor& /*loss_and_correct*/) {}

  // Ends an epoch: afterwards the parameters of ranks that `keeps_ranks_equal` are equal. Collective.
  virtual void EndEpoch() {}

  // Returns the tensors that the optimizer updates: the model's parameters, or the parts of them that belong to this rank.
  // A part of a parameter of two or more dimensions has two dimensions, any other part has one. Call it once.
  virtual std::vector<at::Tensor> Trained() = 0;

  // Takes part in the steps of the other ranks with zeros, because this rank has no more batches. Blocks
  // until all ranks have called Join; then new steps may begin. Collective. Throws TrainerError if the engine
  // does not support this.
  virtual void Join();

  // Broadcasts rank 0's buffers (running statistics), so that all ranks evaluate the same model. Collective.
  virtual void SyncBuffers() = 0;

  // Returns the learning rate of one StepTask::Update in a step with this rate.
  virtual double RateOfUpdate(double rate) const { return rate; }

  // Returns whether all ranks hold the same parameters at the end of an epoch.
  virtual bool keeps_ranks_equal() const { return true; }
  // Returns whether the next step averages gradients over the ranks.
  virtual bool averages_gradients() const { return true; }

  // Returns why a Step like the last one cannot be recorded into a CUDA graph; empty if it can.
  virtual std::string WhyNotRecorded() const = 0;

  // Returns how a checkpoint stores the parameters and the tensors of the optimizer.
  enum class Stored {
    kPerRank = 1,  // each rank its own
    kOnce,         // they are equal on all ranks after each step: only those of rank 0
    kAveraged,     // each rank its own; another number of ranks continues with their mean
    kShards,       // each rank its Shards
  };
  virtual Stored stored() const = 0;
  // The following three are for engines that store kShards.
  // Returns the shards of this rank in the order of Trained. The stored shards of all ranks are the parameters, each element
  // once. To be called between steps.
  virtual std::vector<Shard> Shards() { return {}; }
  // Returns a tensor with the shape and strides of the whole parameter, of which `parameter`, one of the model's, may be a part.
  // The tensor may have no memory.
  virtual at::Tensor Whole(const at::Tensor& parameter) const { return parameter; }
  // Sets the tensors of shards that this rank does not store to those of the ranks that do. `of_shards` has one tensor for each
  // shard of this rank, in their order. Collective.
  virtual void ShareShards(const std::vector<at::Tensor>& /*of_shards*/) {}

  // Prepares to continue from a checkpoint that as many ranks wrote, of which `state` is the State of this rank: divides the
  // model as they did. Called before Trained. Throws TrainerError if this run cannot be divided so. Collective.
  virtual void PrepareFor(const NamedTensors& /*state*/) {}
  // Returns the tensors of this rank that the strategy keeps from step to step, for a checkpoint: the shards of a sharded
  // optimizer, the errors that compression left out. Their names are the strategy's own. To be called between steps.
  // Collective.
  virtual NamedTensors State() { return {}; }
  // Restores State. `of_ranks` has one element, that of this rank, if as many ranks wrote the checkpoint as read it;
  // else one of each rank that wrote it, in order. Called once before the first step. Collective.
  virtual void LoadState(const std::vector<NamedTensors>& /*of_ranks*/) {}

  // Appends the counters of the strategy, for the `finish` event.
  virtual void AppendMetrics(std::vector<Metric>&) const {}
};

// A strategy whose steps end with the same gradients on all ranks, which then update the whole model by them.
class GradientStrategy : public Strategy {
 public:
  explicit GradientStrategy(Model& model) : model_(model) {}

  void Step(StepTask& task) override;
  std::vector<at::Tensor> Trained() override;

  // Adds the gradients of `loss` to those of the step, on this rank only. May be called any number of times
  // before Backward (gradient accumulation).
  virtual void Accumulate(const at::Tensor& loss) = 0;

  // Adds the gradients of `loss`. Afterwards grad() is the mean over the ranks of the
  // accumulated gradients, the same on all ranks, bit for bit. A parameter that got a gradient on some ranks
  // counts as zero on the others. A parameter that got no gradient on any rank has no grad(). Gradients of
  // the previous step are discarded. Collective; called once per step.
  virtual BackwardCost Backward(const at::Tensor& loss) = 0;

 protected:
  Model& model_;
};

// Makes another model of the same kind, in host memory.
using MakeReplica = std::function<std::shared_ptr<Model>()>;

// Creates the strategy of engine `spec.engine`. `make_replica` is required by native/data-parallel. Throws TrainerError that
// lists the known engines if it is unknown.
std::unique_ptr<Strategy> MakeStrategy(const TrainingSpec& spec, Model& model, Communicator& communicator,
                                       const MakeReplica& make_replica = {});

}  // namespace scalelab::trainer
