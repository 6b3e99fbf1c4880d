// Training without communication: for a single rank, and for native/none.
#pragma once

#include "worker/trainer/strategies/strategy.h"

namespace scalelab::trainer {

// Runs plain backward. With several ranks (native/none, the baseline for the cost of communication) all ranks
// start from rank 0's parameters and then diverge.
class LocalStrategy : public GradientStrategy {
 public:
  LocalStrategy(Model& model, Communicator& communicator);

  void Accumulate(const at::Tensor& loss) override;
  BackwardCost Backward(const at::Tensor& loss) override;
  void DiscardStep() override { in_step_ = false; }
  void Join() override {}
  void SyncBuffers() override {}
  std::string WhyNotRecorded() const override { return ""; }
  bool keeps_ranks_equal() const override { return alone_; }
  Stored stored() const override { return alone_ ? Stored::kOnce : Stored::kPerRank; }
  bool averages_gradients() const override { return false; }

 private:
  void BeginStep();

  const bool alone_;
  std::vector<at::Tensor> parameters_;
  bool in_step_ = false;  // whether gradients are being accumulated
};

}  // namespace scalelab::trainer
