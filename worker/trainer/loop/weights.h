// The parameters of a model and the tensors of its optimizer, in the form in which a checkpoint stores them.
#pragma once

#include <string>
#include <vector>

#include "worker/trainer/checkpoint/checkpoint_store.h"
#include "worker/trainer/loop/train_step.h"
#include "worker/trainer/strategies/strategy.h"

namespace scalelab::trainer {

// Strategy::stored decides whether rank 0 stores the weights for all ranks, or each rank stores its own. The
// names of tensors in a checkpoint are:
// - parameter/NAME for a parameter, and optimizer/velocity/POSITION for its velocity;
// - the same name with "@FIRST" for a shard, where FIRST is Shard::first;
// - place/NAME@FIRST for the strides of a shard that is not a contiguous range of the parameter's memory.
class Weights {
 public:
  // All references must outlive the object.
  Weights(Model& model, const TrainStep& step, Strategy& strategy)
      : model_(model), step_(step), strategy_(strategy) {}

  // Returns the tensors that rank 0 stores for all ranks.
  NamedTensors Shared() const;
  // Returns the tensors that this rank stores.
  NamedTensors Mine() const;

  // Sets the weights to those of a checkpoint. `same` is whether as many ranks wrote the checkpoint as now
  // read it. If it is false, shards are assembled to whole tensors and divided again. Throws TrainerError if
  // they do not fit the model or the number of ranks. Collective.
  void Restore(const Checkpoint& checkpoint, bool same) const;

 private:
  // A tensor of a shard: its part of the parameter or of the velocity.
  struct Part {
    std::string name;   // of the whole parameter
    std::string whole;  // name of the whole tensor: the parameter or its velocity
    Shard shard;
    at::Tensor tensor;  // memory of the model or the optimizer, with the shape of the shard
  };

  bool InShards() const { return strategy_.stored() == Strategy::Stored::kShards; }
  NamedTensors All() const;
  // Returns the parts of the shards of this rank: those of the parameters, then those of the velocities.
  std::vector<Part> PartsOfShards() const;
  NamedTensors PutTogether(const Checkpoint& checkpoint) const;
  void Divide(const NamedTensors& whole) const;
  void RestoreShards(const Checkpoint& checkpoint) const;
  void AssignScale(const NamedTensors& from) const;

  Model& model_;
  const TrainStep& step_;
  Strategy& strategy_;
};

}  // namespace scalelab::trainer
