// A training step.
#pragma once

#include <memory>
#include <vector>

#include "worker/trainer/comm/communicator.h"
#include "worker/trainer/data/batch.h"
#include "worker/trainer/device/step_graph.h"
#include "worker/trainer/metrics/event_writer.h"
#include "worker/trainer/metrics/step_log.h"
#include "worker/trainer/optim/loss_scaler.h"
#include "worker/trainer/optim/sgd.h"
#include "worker/trainer/precision.h"
#include "worker/trainer/strategies/strategy.h"

namespace scalelab::trainer {

class Model;
class WeightCopies;

// Returns the communicator over which ranks must agree whether a gradient of the next step is not finite.
// Returns null if no communication is needed: all ranks have the same gradients, or do not average them.
Communicator* LossScaleCommunicator(const Strategy& strategy, Communicator& communicator);

// Prepares a step for the strategy, which runs forward, backward, synchronisation and the optimizer, and
// computes the numbers of the step's event. On a GPU the host never waits for the device. With `cuda_graph`,
// a step is recorded after some ordinary ones and replayed from then on. If a step cannot be recorded, the
// reason is written to standard error and steps run as usual.
class TrainStep {
 public:
  // All references must outlive the object.
  TrainStep(const TrainingSpec& spec, Precision precision, at::Device device, Model& model,
            Strategy& strategy, Communicator& communicator);
  ~TrainStep();

  // Runs one step and fills in `record`, whose global_samples must be set. On a rank that does not train, the
  // batch must be empty, and the numbers of the record are not set. Collective.
  void Run(const Batch& batch, double rate, StepRecord& record);

  // Appends the memory of parameters, gradients and optimizer of this rank, as measured and by the formula of
  // the engine, and that of activations, if they were measured. Must be called after Strategy::EndEpoch.
  void AppendMemory(std::vector<Metric>& metrics) const;

  // Returns the tensors of the optimizer and of the loss scale that a step changes; writing into them
  // restores a state.
  NamedTensors State() const;

 private:
  class Task;

  // Returns the largest number of micro-batches of a rank in a step.
  int64_t MostParts(int64_t global_samples) const;
  // Returns the squared norm that the gradient of global_batch / ranks samples is expected to have, from the
  // squared norms of the gradient of a slice and of the mean gradient. The coordinator computes with this
  // number of samples. A slice is larger if ranks have parts of a model, or do not train.
  at::Tensor SquareOfRank(const at::Tensor& of_slice, const at::Tensor& of_mean) const;
  void Body(const Batch& batch, StepRecord& record);
  std::string WhyNotRecorded() const;
  void Record(const Batch& batch);

  const TrainingSpec& spec_;
  const Precision precision_;
  const at::Device device_;
  Model& model_;
  Strategy& strategy_;
  Communicator& communicator_;
  const int64_t slices_;                   // number of slices into which the ranks divide a global batch
  const std::vector<at::Tensor> trained_;  // the tensors that the optimizer updates
  // Copies of the weights in the type in which convolutions compute. Null unless the run uses automatic mixed
  // precision on a GPU and the engine allows copies.
  const std::unique_ptr<WeightCopies> copies_;
  Sgd optimizer_;
  LossScaler scaler_;

  const at::Tensor unknown_;  // the value of numbers that are not known

  int64_t steps_ = 0;
  // The largest sum of the bytes that forward has kept for backward of micro-batches, in the step in which
  // this is measured.
  int64_t activations_ = 0;
  std::unique_ptr<StepGraph> graph_;  // the recorded step; input_ and left_ are its input and its record
  Batch input_;
  StepRecord left_;
};

}  // namespace scalelab::trainer
