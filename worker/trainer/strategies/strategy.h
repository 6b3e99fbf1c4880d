// The seam to how gradients are brought together between ranks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "worker/trainer/comm/communicator.h"
#include "worker/trainer/device/moment.h"
#include "worker/trainer/metrics/event_writer.h"
#include "worker/trainer/models/model.h"
#include "worker/trainer/training_spec.h"

namespace scalelab::trainer {

// What the Backward of one step cost.
struct BackwardCost {
  Moment computed;    // autograd has nothing left to compute; what follows is waiting for gradients
  int64_t bytes = 0;  // gradients handed to the communicator
};

// Made after the model has its final device and memory format; lives as long as the model trains. A
// constructor makes all ranks start from rank 0's parameters and buffers.
class Strategy {
 public:
  virtual ~Strategy() = default;

  // Adds the gradients of `loss` to those of the step, on this rank alone: any number of times before
  // Backward (gradient accumulation).
  virtual void Accumulate(const at::Tensor& loss) = 0;

  // Adds the gradients of `loss` too and ends the step: afterwards grad() is the mean over the ranks of what
  // each has added up, the same bits on all of them. A parameter that got a gradient on some ranks counts as
  // zeros on the others; one that got none anywhere has no grad(). Gradients of the step before are gone.
  // Collective; once a step.
  virtual BackwardCost Backward(const at::Tensor& loss) = 0;

  // This rank has no more batches, the others may: counts as zeros in their steps until all ranks have called
  // it. Collective; afterwards steps may begin again. Throws TrainerError where the engine cannot do that.
  virtual void Join();

  // Gives all ranks rank 0's buffers (running statistics), so that all evaluate the same model. Collective.
  virtual void SyncBuffers() = 0;

  // Whether all ranks hold the same parameters after each step.
  virtual bool keeps_ranks_equal() const { return true; }

  // Why a Backward like the last one cannot be recorded into a CUDA graph; empty: it can.
  virtual std::string WhyNotRecorded() const = 0;

  // Appends what the strategy counted, for the `finish` event.
  virtual void AppendMetrics(std::vector<Metric>&) const {}
};

// The strategy of engine `spec.engine`. Throws TrainerError that lists the known ones for an unknown engine.
std::unique_ptr<Strategy> MakeStrategy(const TrainingSpec& spec, Model& model, Communicator& communicator);

}  // namespace scalelab::trainer
