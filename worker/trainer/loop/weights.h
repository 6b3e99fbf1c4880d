// The parameters of a model and the tensors of its optimizer, in the form in which a checkpoint stores them.
#pragma once

#include "worker/trainer/checkpoint/checkpoint_store.h"
#include "worker/trainer/loop/train_step.h"
#include "worker/trainer/strategies/strategy.h"

namespace scalelab::trainer {

// Strategy::stored decides who stores what. A tensor of a whole parameter is called parameter/NAME or
// optimizer/velocity/POSITION; that of a shard has the same name, "@" and Shard::first, and one dimension.
class Weights {
 public:
  // All references must outlive the object.
  Weights(Model& model, const TrainStep& step, const Strategy& strategy)
      : model_(model), step_(step), strategy_(strategy) {}

  // Returns what rank 0 stores for all ranks.
  NamedTensors Shared() const;
  // Returns what this rank stores.
  NamedTensors Mine() const;

  // Sets the weights to those of a checkpoint. `same`: as many ranks wrote it. Otherwise shards are put together and divided
  // again. Throws TrainerError if they do not fit the model or the number of ranks.
  void Restore(const Checkpoint& checkpoint, bool same) const;

 private:
  bool InShards() const { return strategy_.stored() == Strategy::Stored::kShards; }
  NamedTensors All() const;
  NamedTensors OfShards() const;
  NamedTensors PutTogether(const Checkpoint& checkpoint) const;
  void Divide(const NamedTensors& whole) const;
  void AssignScale(const NamedTensors& from) const;

  Model& model_;
  const TrainStep& step_;
  const Strategy& strategy_;
};

}  // namespace scalelab::trainer
