// One rank: plain backward, nothing to bring together.
#pragma once

#include "worker/trainer/strategies/strategy.h"

namespace scalelab::trainer {

class LocalStrategy : public Strategy {
 public:
  explicit LocalStrategy(Model& model) : parameters_(model.parameters()) {}
  BackwardCost Backward(const at::Tensor& loss) override;
  void SyncBuffers() override {}

 private:
  std::vector<at::Tensor> parameters_;
};

}  // namespace scalelab::trainer
