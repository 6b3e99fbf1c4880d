#include "worker/trainer/comm/solo_communicator.h"

namespace scalelab::trainer {
namespace {

class DoneWork : public Work {
 public:
  void Wait() override {}
};

}  // namespace

std::unique_ptr<Work> SoloCommunicator::StartAllReduce(const at::Tensor&, ReduceOp) {
  return std::make_unique<DoneWork>();
}

}  // namespace scalelab::trainer
