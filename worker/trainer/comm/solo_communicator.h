// One rank alone: every operation is over at once and costs nothing.
#pragma once

#include "worker/trainer/comm/communicator.h"

namespace scalelab::trainer {

class SoloCommunicator : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string_view name() const override { return "solo"; }
  std::unique_ptr<Work> StartAllReduce(const at::Tensor& tensor, ReduceOp op) override;
  void Broadcast(const at::Tensor&, int) override {}
  std::vector<std::string> AllGather(std::string_view mine) override { return {std::string(mine)}; }
  void Barrier() override {}
};

}  // namespace scalelab::trainer
