// The interface of an engine, which trains one model on several ranks.
#pragma once

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "worker/trainer/comm/communicator.h"
#include "worker/trainer/device/device_event.h"
#include "worker/trainer/metrics/event_writer.h"
#include "worker/trainer/metrics/step_log.h"
#include "worker/trainer/models/model.h"
#include "worker/trainer/named_tensors.h"
#include "worker/trainer/training_spec.h"

namespace scalelab::trainer {

// The measurements of one step.
struct BackwardCost {
  DeviceEvent computed;     // end of autograd's computation; the rest of the step is communication
  int64_t bytes = 0;        // number of bytes that were passed to the communicator
  std::vector<Span> spans;  // times of the communication of gradients
  // Squared norms of the gradient of a slice of the samples and of the mean over the slices: numbers in
  // double precision on the device. The first is that of this rank's slice, or the mean over all slices.
  // Undefined if there is one slice, or if the mean of the gradients is not known up to rounding.
  at::Tensor rank_square, mean_square;
};

// A part of a parameter that a rank updates. It is a view of the whole parameter's memory.
struct Shard {
  int parameter = 0;                   // index among the model's parameters that need a gradient
  at::Tensor value;                    // the part; a view of a tensor that the optimizer updates
  int64_t first = 0;                   // offset of the first element in the whole parameter's memory
  std::vector<int64_t> strides = {1};  // strides of `value` in the whole parameter's memory
  bool stored = true;                  // whether this rank stores it in checkpoints, or another rank
};

// The samples of a rank: slice `index` of `count` slices of each global batch. Ranks that compute parts of
// one model have the same slice. If `index` is -1, the rank does not train.
struct DataSlice {
  int index, count;
};

// The bytes of a model and of its training that a rank keeps from step to step.
struct ModelMemory {
  double parameters = 0, gradients = 0, optimizer = 0;
};
// Returns the size of the memory of tensors. Memory that several tensors share counts once, and undefined
// tensors count as 0.
double BytesOf(const std::vector<at::Tensor>& tensors);

class Strategy;
// Returns the number of ranks, out of `ranks`, that train on the same samples.
int RanksOfASlice(const Strategy& strategy, int ranks);

// One rank's part of a training step. The training loop implements this interface, and a strategy calls it.
class StepTask {
 public:
  virtual ~StepTask() = default;

  // Returns the number of micro-batches, at least 1 on a rank that trains.
  virtual int64_t parts() const = 0;
  // Returns the largest number of micro-batches of all ranks. In the last batch of an epoch, some ranks may
  // have fewer samples than others, and therefore fewer micro-batches.
  virtual int64_t most_parts() const = 0;
  // Runs the model on micro-batch `part`, counted from 0, and returns its loss. The losses of all parts add
  // up to the mean loss of this rank's batch. If the strategy averages gradients, the losses are weighted by
  // the rank's share of the global batch. Backward of the part before must have ended.
  virtual at::Tensor Forward(int64_t part) = 0;
  // Returns the model's input of micro-batch `part`. For strategies that run parts of the model.
  virtual at::Tensor Input(int64_t /*part*/) const { throw std::logic_error("Input is missing"); }
  // Runs `stage`, which is a part of the model, on micro-batch `part` in the run's precision. Returns the
  // output of the stage. If the stage is the `last` one, whose output is the logits, returns the same loss as
  // Forward. Must be called for all micro-batches in their order.
  virtual at::Tensor Run(int64_t /*part*/, const std::function<at::Tensor()>& /*stage*/, bool /*last*/) {
    throw std::logic_error("Run is missing");
  }
  // Reports that backward of a micro-batch has ended. A strategy that calls Run must call it. Until then, the
  // memory that forward has kept for backward counts as memory of activations.
  virtual void BackwardEnded(int64_t /*part*/) {}
  // Records the measurements of the step. The strategy calls it after the communication of gradients
  // and before Update.
  virtual void Measured(BackwardCost cost) = 0;
  // Updates the tensors of Strategy::Trained with their gradients.
  virtual void Update() = 0;
  // Returns the learning rate of the step.
  virtual double rate() const = 0;
  virtual StepMarks& marks() = 0;
};

// Trains a model together with the other ranks. It is created after the model has its final device and
// memory format, and exists as long as the model trains. Constructors broadcast rank 0's parameters and
// buffers to all ranks.
class Strategy {
 public:
  virtual ~Strategy() = default;

  // Executes one step: forward and backward of all parts, synchronisation, and the optimizer. Discards the
  // gradients of the previous step. Collective.
  virtual void Step(StepTask& task) = 0;

  // Resets the state after an exception has ended a step, so that Step can be called again.
  virtual void DiscardStep() {}

  // Returns the samples on which rank `rank` of `ranks` trains. On a rank that does not train, the task of
  // Step has no parts.
  virtual DataSlice SliceOf(int rank, int ranks) const { return {rank, ranks}; }

  // Runs the model on a micro-batch, for StepTask::Forward.
  virtual TrainingLogits Forward(Model& model, const at::Tensor& images) {
    return model.ForwardTraining(images);
  }

  // Copies the mean loss and the number of correct predictions of a step (two numbers in double
  // precision on the device) from the rank that has computed them to the ranks that have not. Called
  // after each Step. Collective.
  virtual void ShareResult(const at::Tensor& /*loss_and_correct*/) {}

  // Ends an epoch. If keeps_ranks_equal(), the parameters are then equal on all ranks. Collective.
  virtual void EndEpoch() {}

  // Returns the tensors that the optimizer updates: the model's parameters, or the parts of them that belong
  // to this rank. A part of a parameter with two or more dimensions has two dimensions; any other part has
  // one. Must be called once.
  virtual std::vector<at::Tensor> Trained() = 0;

  // Participates in the steps of the other ranks with zeros, because this rank has no more batches. Blocks
  // until all ranks have called Join. Then new steps may begin. Collective. Throws TrainerError if the engine
  // does not support this.
  virtual void Join();

  // Broadcasts rank 0's buffers (running statistics), so that all ranks evaluate the same model. Collective.
  virtual void SyncBuffers() = 0;

  // Returns the learning rate of one call of StepTask::Update, in a step with learning rate `rate`.
  virtual double RateOfUpdate(double rate) const { return rate; }

  // Returns whether all ranks have the same parameters at the end of an epoch.
  virtual bool keeps_ranks_equal() const { return true; }
  // Returns whether the next step averages gradients over the ranks.
  virtual bool averages_gradients() const { return true; }

  // Returns whether, from the first step to the last, nothing but the optimizer changes the model's
  // parameters, and Trained returns all of them.
  virtual bool only_optimizer_changes_parameters() const { return false; }

  // Returns why a Step like the last one cannot be recorded into a CUDA graph; "" if it can.
  virtual std::string WhyNotRecorded() const = 0;

  // Returns how a checkpoint stores the parameters and the tensors of the optimizer.
  enum class Stored {
    kPerRank = 1,  // each rank stores its own tensors
    kOnce,         // only rank 0 stores them, because they are equal on all ranks after each step
    kAveraged,     // each rank stores its own tensors; another number of ranks continues with their mean
    kShards,       // each rank stores its Shards
  };
  virtual Stored stored() const = 0;
  // The following three are for engines that store kShards.
  // Returns the shards of this rank in the order of Trained. The stored shards of all ranks contain each
  // element of the parameters exactly once. Must be called between steps.
  virtual std::vector<Shard> Shards() { return {}; }
  // Returns a tensor with the shape and strides of the whole parameter. `parameter` is a parameter of the
  // model, and may be a part of the whole parameter. The result may have no memory.
  virtual at::Tensor Whole(const at::Tensor& parameter) const { return parameter; }
  // Copies tensors of shards from the ranks that store these shards to the ranks that do not. `of_shards` has
  // one tensor for each shard of this rank, in the order of Shards. Collective.
  virtual void ShareShards(const std::vector<at::Tensor>& /*of_shards*/) {}

  // Prepares to continue from a checkpoint of the same number of ranks: divides the model as in the
  // checkpoint. `state` is the State of this rank. Called before Trained. Throws TrainerError if the model
  // cannot be divided in this way. Collective.
  virtual void PrepareFor(const NamedTensors& /*state*/) {}
  // Returns the tensors of this rank that the strategy keeps from step to step, for a checkpoint. An
  // example are the errors of gradient compression. The strategy chooses their names. Must be called
  // between steps. Collective.
  virtual NamedTensors State() { return {}; }
  // Restores State. If the number of ranks has not changed since the checkpoint, `of_ranks` has one element,
  // the state of this rank. Otherwise it has the states of all ranks that wrote the checkpoint, in order.
  // Called once before the first step. Collective.
  virtual void LoadState(const std::vector<NamedTensors>& /*of_ranks*/) {}

  // Returns the memory of this rank. `found` is the memory of the model's parameters, of the gradients of
  // these and of Trained, and of the optimizer's tensors. A strategy replaces what it does not keep from step
  // to step or keeps elsewhere.
  virtual ModelMemory Memory(const ModelMemory& found) const { return found; }
  // Returns Memory by the formula of the engine, without padding. `parameters` is the size of all parameters
  // of the model.
  virtual ModelMemory MemoryByFormula(double parameters) const {
    return {parameters, parameters, parameters};
  }

  // Appends the counters of the strategy, for the `finish` event.
  virtual void AppendMetrics(std::vector<Metric>&) const {}
};

// A strategy in which each rank updates the whole model. Its steps end with the same gradients on all ranks,
// except those of native/none, which does not communicate.
class GradientStrategy : public Strategy {
 public:
  explicit GradientStrategy(Model& model) : model_(model) {}

  void Step(StepTask& task) override;
  std::vector<at::Tensor> Trained() override;
  bool only_optimizer_changes_parameters() const override { return true; }

  // Adds the gradients of `loss` to those of the step, on this rank only. May be called any number of times
  // before Backward (gradient accumulation).
  virtual void Accumulate(const at::Tensor& loss) = 0;

  // Adds the gradients of `loss`. Afterwards grad() is the mean over the ranks of the accumulated gradients,
  // equal on all ranks bit for bit; with native/none it is the gradient of this rank. If a parameter has a
  // gradient on some ranks only, the gradient counts as zero on the other ranks. A parameter without a
  // gradient on any rank has no grad(). Gradients of the previous step are discarded. Collective. Must be
  // called once in each step.
  virtual BackwardCost Backward(const at::Tensor& loss) = 0;

 protected:
  Model& model_;
};

// A function that returns another model of the same kind, in host memory.
using MakeReplica = std::function<std::shared_ptr<Model>()>;

// Creates the strategy of engine `spec.engine`. native/data-parallel requires `make_replica`. If the engine
// is unknown, throws a TrainerError that lists the known engines.
std::unique_ptr<Strategy> MakeStrategy(const TrainingSpec& spec, Model& model, Communicator& communicator,
                                       const MakeReplica& make_replica = {});

}  // namespace scalelab::trainer
