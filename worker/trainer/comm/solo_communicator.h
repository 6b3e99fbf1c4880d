// The communicator of a single rank. Every operation ends at once, and makes at most one copy.
#pragma once

#include "worker/trainer/comm/communicator.h"

namespace scalelab::trainer {

class SoloCommunicator : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string_view name() const override { return "solo"; }
  std::unique_ptr<Work> StartAllReduce(const at::Tensor& tensor, ReduceOp op) override;
  std::unique_ptr<Work> StartReduceScatter(const at::Tensor& output, const at::Tensor& input,
                                           ReduceOp op) override;
  std::unique_ptr<Work> StartAllGather(const at::Tensor& output, const at::Tensor& input) override;
  std::unique_ptr<Work> StartAllGatherV(const at::Tensor& output, const at::Tensor& input,
                                        const std::vector<int64_t>& counts) override;
  void Broadcast(const at::Tensor&, int) override {}
  // Always throw, because a single rank has no peer.
  std::unique_ptr<Work> StartSend(const at::Tensor& tensor, int to) override;
  std::unique_ptr<Work> StartReceive(const at::Tensor& tensor, int from) override;
  std::unique_ptr<Communicator> Split(int) override { return std::make_unique<SoloCommunicator>(); }
  int ReceiveFromAny(const at::Tensor& tensor) override;
  std::vector<std::string> AllGather(std::string_view mine) override { return {std::string(mine)}; }
  void Barrier() override {}
  bool CanBeRecorded() const override { return true; }
};

}  // namespace scalelab::trainer
