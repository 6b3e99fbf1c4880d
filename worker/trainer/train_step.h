// One training step, as the device is given it.
#pragma once

#include <memory>

#include "worker/trainer/comm/communicator.h"
#include "worker/trainer/data/batch.h"
#include "worker/trainer/device/step_graph.h"
#include "worker/trainer/metrics/step_log.h"
#include "worker/trainer/models/model.h"
#include "worker/trainer/optim/loss_scaler.h"
#include "worker/trainer/optim/sgd.h"
#include "worker/trainer/precision.h"
#include "worker/trainer/strategies/strategy.h"

namespace scalelab::trainer {

// Forward, backward with what the strategy brings together, the optimizer, and the numbers of the step's
// event. On a GPU nothing in it waits for the device. With field `cuda_graph` the step is recorded once, when
// some have passed as they are, and replayed from then on; where engine or backend cannot do that the reason
// goes to standard error and steps stay as they are.
class TrainStep {
 public:
  // All must outlive it.
  TrainStep(const TrainingSpec& spec, Precision precision, at::Device device, Model& model,
            Strategy& strategy, Communicator& communicator);

  // Fills in what the step leaves in `record`, whose global_samples must be there. Collective.
  void Run(const Batch& batch, double rate, StepRecord& record);

 private:
  void Body(const Batch& batch, StepRecord& record);
  std::string WhyNotRecorded() const;
  void Record(const Batch& batch);

  const TrainingSpec& spec_;
  const Precision precision_;
  const at::Device device_;
  Model& model_;
  Strategy& strategy_;
  Communicator& communicator_;
  Sgd optimizer_;
  LossScaler scaler_;

  int64_t steps_ = 0;
  std::unique_ptr<StepGraph> graph_;  // once recorded, with what it reads and leaves
  Batch input_;
  StepRecord left_;
};

}  // namespace scalelab::trainer
