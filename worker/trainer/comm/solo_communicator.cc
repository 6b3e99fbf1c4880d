#include "worker/trainer/comm/solo_communicator.h"

#include <cstring>

#include "worker/trainer/comm/tensors.h"

namespace scalelab::trainer {
namespace {

class DoneWork : public Work {
 public:
  void Wait() override {}
  bool Done() override { return true; }
};

std::unique_ptr<Work> Copy(const at::Tensor& output, const at::Tensor& input) {
  if (input.is_cpu()) {
    std::memmove(output.data_ptr(), input.data_ptr(), input.nbytes());
  } else {
    const at::NoGradGuard no_grad;
    output.view(-1).copy_(input.view(-1));
  }
  return std::make_unique<DoneWork>();
}

}  // namespace

std::unique_ptr<Work> SoloCommunicator::StartAllReduce(const at::Tensor& tensor, ReduceOp op) {
  CheckReduction(tensor, op);
  return std::make_unique<DoneWork>();
}

std::unique_ptr<Work> SoloCommunicator::StartReduceScatter(const at::Tensor& output, const at::Tensor& input,
                                                           ReduceOp op) {
  CheckReduction(input, op);
  CheckBlocks(input, output, 1);
  return Copy(output, input);
}

std::unique_ptr<Work> SoloCommunicator::StartAllGather(const at::Tensor& output, const at::Tensor& input) {
  CheckBlocks(output, input, 1);
  return Copy(output, input);
}

std::unique_ptr<Work> SoloCommunicator::StartAllGatherV(const at::Tensor& output, const at::Tensor& input,
                                                        const std::vector<int64_t>& counts) {
  CheckUnequalBlocks(output, input, counts, *this);
  return Copy(output, input);
}

std::unique_ptr<Work> SoloCommunicator::StartSend(const at::Tensor&, int to) {
  CheckPeer(to, *this);
  return nullptr;  // unreachable: CheckPeer throws
}

std::unique_ptr<Work> SoloCommunicator::StartReceive(const at::Tensor&, int from) {
  CheckPeer(from, *this);
  return nullptr;
}

int SoloCommunicator::ReceiveFromAny(const at::Tensor& tensor) {
  CheckReceiveFromAny(tensor, *this);
  return 0;  // unreachable: the check throws
}

}  // namespace scalelab::trainer
