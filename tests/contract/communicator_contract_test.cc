// The communicator contract in one process: for a single rank, and for ranks that are threads.
#include "tests/contract/communicator_contract.h"

#include "tests/fakes/thread_communicator.h"
#include "worker/trainer/comm/solo_communicator.h"
#include "worker/trainer/comm/staged_communicator.h"

namespace scalelab::trainer {
namespace {

class CommunicatorContract : public testing::TestWithParam<ContractCase> {};

TEST_P(CommunicatorContract, HoldsForOneRankAlone) {
  SoloCommunicator communicator;
  GetParam().check(communicator);
}

TEST_P(CommunicatorContract, HoldsForThreeThreads) {
  OnRanks(3, [](ThreadCommunicator& communicator) { GetParam().check(communicator); });
}

// Copies tensors to a staging buffer as for a GPU, but both are in CPU memory.
TEST_P(CommunicatorContract, HoldsForStagedTensors) {
  const auto group = std::make_shared<ThreadCommunicator::Group>(3);
  std::vector<std::thread> ranks;
  for (int r = 0; r < 3; ++r) {
    ranks.emplace_back([&, r] {
      StagedCommunicator staged(std::make_unique<ThreadCommunicator>(group, r), at::kCPU);
      GetParam().check(staged);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

INSTANTIATE_TEST_SUITE_P(All, CommunicatorContract, testing::ValuesIn(kCommunicatorContract),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace scalelab::trainer
