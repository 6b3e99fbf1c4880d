// Each rank for itself: one rank alone, and native/none.
#pragma once

#include "worker/trainer/strategies/strategy.h"

namespace scalelab::trainer {

// Plain backward, nothing is brought together. With several ranks (native/none, the base of what
// communication costs) all start from rank 0's parameters and drift apart with their batches.
class LocalStrategy : public Strategy {
 public:
  LocalStrategy(Model& model, Communicator& communicator);

  void Accumulate(const at::Tensor& loss) override;
  BackwardCost Backward(const at::Tensor& loss) override;
  void Join() override {}
  void SyncBuffers() override {}
  std::string WhyNotRecorded() const override { return ""; }
  bool keeps_ranks_equal() const override { return alone_; }

 private:
  void BeginStep();

  const bool alone_;
  std::vector<at::Tensor> parameters_;
  bool in_step_ = false;  // gradients are being added up
};

}  // namespace scalelab::trainer
