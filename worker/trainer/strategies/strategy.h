// The seam to how gradients are brought together between ranks.
#pragma once

#include <memory>
#include <string>

#include "worker/trainer/comm/communicator.h"
#include "worker/trainer/models/model.h"
#include "worker/trainer/training_spec.h"

namespace scalelab::trainer {

// What one backward pass cost.
struct BackwardCost {
  double compute_seconds = 0;  // until autograd had nothing left to compute
  double exposed_seconds = 0;  // waiting for gradients after that
  int64_t bytes = 0;           // gradients handed to the communicator
};

// Made after the model has its final device and memory format; lives as long as the model trains. A
// constructor makes all ranks start from rank 0's parameters and buffers.
class Strategy {
 public:
  virtual ~Strategy() = default;

  // Computes the gradients of `loss`. Afterwards grad() of every parameter that took part is the mean over
  // the ranks, the same bits on all of them; gradients of the step before are gone. Collective; once a step.
  virtual BackwardCost Backward(const at::Tensor& loss) = 0;

  // Gives all ranks rank 0's buffers (running statistics), so that all evaluate the same model. Collective.
  virtual void SyncBuffers() = 0;
};

// The strategy of engine `spec.engine`. Throws TrainerError that lists the known ones for an unknown engine.
std::unique_ptr<Strategy> MakeStrategy(const TrainingSpec& spec, Model& model, Communicator& communicator);

}  // namespace scalelab::trainer
