// Collects the state of a run that a later process needs to continue it, as named tensors, and restores it.
#pragma once

#include "worker/trainer/checkpoint/checkpoint_store.h"
#include "worker/trainer/loop/train_step.h"
#include "worker/trainer/loop/weights.h"
#include "worker/trainer/metrics/run_meter.h"
#include "worker/trainer/metrics/step_log.h"
#include "worker/trainer/strategies/strategy.h"

namespace scalelab::trainer {

// Values that a run accumulates from epoch to epoch for its `finish` event.
struct RunTotals {
  double train_loss = 0, training_seconds = 0, cpu_seconds = 0, left_out = 0, samples = 0;
  double time_to_accuracy = -1, samples_to_accuracy = 0, accuracy = 0;
  double run_seconds = 0;         // time of steps, evaluations and checkpoints
  double checkpoint_seconds = 0;  // time of writing checkpoints
  double lost_seconds = 0;        // time of work that was lost, and of restarts
};

// The state of the objects that are passed to the constructor. All of them must outlive this object.
class RunState {
 public:
  RunState(at::Device device, Model& model, TrainStep& step, Strategy& strategy, RunMeter& meter,
           Communicator& communicator, int64_t steps_per_epoch)
      : device_(device),
        model_(model),
        strategy_(strategy),
        weights_(model, step, strategy),
        meter_(meter),
        communicator_(communicator),
        steps_per_epoch_(steps_per_epoch) {}

  // Returns the part of the state that is equal on all ranks.
  NamedTensors Shared() const;
  // Returns the part of the state that may differ between ranks: weights, buffers, random number
  // generators, the strategy's state and measurements. `epoch` has the sums over the steps of the current
  // epoch so far. Collective.
  NamedTensors Mine(const EpochSums& epoch, const RunTotals& totals) const;

  // Continues from a checkpoint. If another number of ranks wrote it, all ranks use the buffers of rank 0,
  // seed their generators anew and start their measurements again. Throws TrainerError if the checkpoint does
  // not fit the model, or if its run had another number of steps per epoch. Collective.
  void Restore(const Checkpoint& checkpoint, uint64_t seed, EpochSums& epoch, RunTotals& totals);
  // Prepares a strategy to continue from a checkpoint. Must be called before the TrainStep of the strategy
  // is constructed. Collective.
  static void Prepare(const Checkpoint& checkpoint, Strategy& strategy, const Communicator& communicator);

 private:
  // Returns the number of ranks that train on the same samples. A sum over all ranks counts a sample
  // that many times.
  double Copies() const { return RanksOfASlice(strategy_, communicator_.size()); }

  const at::Device device_;
  Model& model_;
  Strategy& strategy_;
  Weights weights_;
  RunMeter& meter_;
  Communicator& communicator_;
  const int64_t steps_per_epoch_;
};

}  // namespace scalelab::trainer
