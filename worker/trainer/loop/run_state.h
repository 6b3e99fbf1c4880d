// Everything that a run has to keep between two processes, as tensors with names.
#pragma once

#include "worker/trainer/checkpoint/checkpoint_store.h"
#include "worker/trainer/loop/train_step.h"
#include "worker/trainer/loop/weights.h"
#include "worker/trainer/metrics/run_meter.h"
#include "worker/trainer/metrics/step_log.h"
#include "worker/trainer/strategies/strategy.h"

namespace scalelab::trainer {

// Figures of a run that grow from epoch to epoch, for its `finish` event.
struct RunTotals {
  double train_loss = 0, training_seconds = 0, cpu_seconds = 0, left_out = 0, samples = 0;
  double time_to_accuracy = -1, samples_to_accuracy = 0, accuracy = 0;
  double run_seconds = 0;         // of steps, evaluations and checkpoints
  double checkpoint_seconds = 0;  // of writing checkpoints
  double lost_seconds = 0;        // of work that was lost, and of starting again
};

// The parts of a run whose state is kept. All must outlive the object.
class RunState {
 public:
  RunState(at::Device device, Model& model, TrainStep& step, Strategy& strategy, RunMeter& meter,
           Communicator& communicator)
      : device_(device),
        model_(model),
        strategy_(strategy),
        weights_(model, step, strategy),
        meter_(meter),
        communicator_(communicator) {}

  // Returns what is equal on all ranks.
  NamedTensors Shared() const;
  // Returns what belongs to this rank: its weights, buffers, random numbers, the strategy's state, measurements. `epoch` is the
  // part of the epoch before the checkpoint. Collective.
  NamedTensors Mine(const EpochSums& epoch, const RunTotals& totals) const;

  // Continues from a checkpoint. With another number of ranks, all take the buffers of rank 0, draw new random numbers and
  // measure anew. Throws TrainerError if the checkpoint does not fit the model. Collective.
  void Restore(const Checkpoint& checkpoint, uint64_t seed, EpochSums& epoch, RunTotals& totals);
  // Prepares a strategy to continue from a checkpoint. Called before its TrainStep is made. Collective.
  static void Prepare(const Checkpoint& checkpoint, Strategy& strategy, const Communicator& communicator);

 private:
  // Returns how many ranks train on the same samples, and count them.
  double Copies() const { return RanksOfASlice(strategy_, communicator_.size()); }

  const at::Device device_;
  Model& model_;
  Strategy& strategy_;
  Weights weights_;
  RunMeter& meter_;
  Communicator& communicator_;
};

}  // namespace scalelab::trainer
