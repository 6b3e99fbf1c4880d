// The interface that synchronises gradients between ranks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "worker/trainer/comm/communicator.h"
#include "worker/trainer/device/moment.h"
#include "worker/trainer/metrics/event_writer.h"
#include "worker/trainer/training_spec.h"

namespace scalelab::trainer {

class Model;

// What the Backward of one step measured.
struct BackwardCost {
  Moment computed;          // end of autograd's computation; the rest is communication
  int64_t bytes = 0;        // size of the gradients passed to the communicator
  std::vector<Span> spans;  // when gradients were communicated, by their ends
  // Squared norms of this rank's gradient and of the mean over the ranks: numbers of double precision on the device.
  // Undefined if the gradients are not averaged.
  at::Tensor rank_square, mean_square;
};

// Created after the model has its final device and memory format, and kept as long as the model trains.
// Constructors broadcast rank 0's parameters and buffers to all ranks.
class Strategy {
 public:
  virtual ~Strategy() = default;

  // Adds the gradients of `loss` to those of the step, on this rank only. May be called any number of times
  // before Backward (gradient accumulation).
  virtual void Accumulate(const at::Tensor& loss) = 0;

  // Adds the gradients of `loss` and ends the step. Afterwards grad() is the mean over the ranks of the
  // accumulated gradients, the same on all ranks, bit for bit. A parameter that got a gradient on some ranks
  // counts as zero on the others. A parameter that got no gradient on any rank has no grad(). Gradients of
  // the previous step are discarded. Collective; called once per step.
  virtual BackwardCost Backward(const at::Tensor& loss) = 0;

  // Takes part in the steps of the other ranks with zeros, because this rank has no more batches. Blocks
  // until all ranks have called Join; then new steps may begin. Collective. Throws TrainerError if the engine
  // does not support this.
  virtual void Join();

  // Broadcasts rank 0's buffers (running statistics), so that all ranks evaluate the same model. Collective.
  virtual void SyncBuffers() = 0;

  // Returns whether all ranks hold the same parameters after each step.
  virtual bool keeps_ranks_equal() const { return true; }

  // Returns why a Backward like the last one cannot be recorded into a CUDA graph; empty if it can.
  virtual std::string WhyNotRecorded() const = 0;

  // Appends the counters of the strategy, for the `finish` event.
  virtual void AppendMetrics(std::vector<Metric>&) const {}
};

// Creates the strategy of engine `spec.engine`. Throws TrainerError that lists the known engines if
// it is unknown.
std::unique_ptr<Strategy> MakeStrategy(const TrainingSpec& spec, Model& model, Communicator& communicator);

}  // namespace scalelab::trainer
