// The parameters of a model and the tensors of its optimizer, in the form in which a checkpoint stores them.
#pragma once

#include <string>
#include <vector>

#include "worker/trainer/checkpoint/checkpoint_store.h"
#include "worker/trainer/loop/train_step.h"
#include "worker/trainer/strategies/strategy.h"

namespace scalelab::trainer {

// Strategy::stored decides who stores what. A tensor of a whole parameter is called parameter/NAME or
// optimizer/velocity/POSITION; that of a shard has the same name, "@" and Shard::first. place/NAME@FIRST has the strides of a shard
// that is not a range of the parameter's memory.
class Weights {
 public:
  // All references must outlive the object.
  Weights(Model& model, const TrainStep& step, Strategy& strategy)
      : model_(model), step_(step), strategy_(strategy) {}

  // Returns what rank 0 stores for all ranks.
  NamedTensors Shared() const;
  // Returns what this rank stores.
  NamedTensors Mine() const;

  // Sets the weights to those of a checkpoint. `same`: as many ranks wrote it. Otherwise shards are put together and divided
  // again. Throws TrainerError if they do not fit the model or the number of ranks. Collective.
  void Restore(const Checkpoint& checkpoint, bool same) const;

 private:
  // What is stored of a shard.
  struct Part {
    std::string name;   // of the whole parameter
    std::string whole;  // name of the whole tensor: the parameter or its velocity
    Shard shard;
    at::Tensor tensor;  // of the model or the optimizer, with the shape of the shard
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
