// Tensor parallelism: different ranks compute different parts of each layer.
#pragma once

#include <memory>
#include <vector>

#include "worker/trainer/models/divisible_model.h"
#include "worker/trainer/strategies/group_gradients.h"
#include "worker/trainer/strategies/strategy.h"

namespace scalelab::trainer {

// Rank r has part r % n of group r / n, where n is the number of ranks that divide a model. The ranks of a
// group train on the same samples, and communicate within forward and backward of each divided layer
// (LayerRanks). After backward, ranks with equal parts average their gradients over the groups. Gradients of
// parameters that are not divided are equal in a group without communication.
//
// Between Step and EndEpoch, the model's parameters are the parts of this rank. EndEpoch gathers them, so
// that the whole model can be evaluated and written, and the next Step divides them again.
class TensorStrategy : public Strategy {
 public:
  // `ranks` is the number of ranks that divide the model; 0 means all ranks. Throws TrainerError if the model
  // cannot be divided among this number of ranks, or if the number of all ranks is not a multiple of it.
  TensorStrategy(Model& model, Communicator& communicator, int64_t ranks);

  void Step(StepTask& task) override;
  void EndEpoch() override;
  std::vector<at::Tensor> Trained() override { return parameters_; }
  void SyncBuffers() override;
  DataSlice SliceOf(int rank, int ranks) const override { return {rank / ranks_, ranks / ranks_}; }
  std::string WhyNotRecorded() const override {
    return "engine native/tensor divides and gathers the parameters from the host; use native/ddp";
  }
  Stored stored() const override { return Stored::kShards; }
  std::vector<Shard> Shards() override;
  at::Tensor Whole(const at::Tensor& parameter) const override;
  void ShareShards(const std::vector<at::Tensor>& of_shards) override;
  ModelMemory Memory(const ModelMemory& found) const override;
  ModelMemory MemoryByFormula(double parameters) const override;

 private:
  // A parameter of which this rank has a part.
  struct Divided {
    Division division;
    std::vector<int64_t> shape;  // shape of the whole parameter
    at::MemoryFormat format = at::MemoryFormat::Contiguous;
  };

  // Returns how a parameter is divided; null if it is not.
  const Divided* FindDivided(const at::Tensor& parameter) const;
  at::Tensor NewPart(const Divided& divided, int rank) const;
  void Divide();
  void Gather();
  void MakeGradients();

  DivisibleModel& model_;
  Communicator& communicator_;
  const int ranks_, part_;  // the number of ranks that divide the model; the index of this rank's part
  std::unique_ptr<Communicator> group_;   // the ranks of this group by part; null if all ranks are one group
  std::unique_ptr<Communicator> equals_;  // the ranks of this part by group; null if there is one group
  std::vector<Divided> divided_;
  bool is_divided_ = false;
  double part_bytes_ = 0;               // size of the divided parameters
  std::vector<at::Tensor> parameters_;  // parameters that need a gradient
  std::unique_ptr<GroupGradients> gradients_;
};

}  // namespace scalelab::trainer
