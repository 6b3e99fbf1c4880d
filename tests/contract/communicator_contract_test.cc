// The communicator suite in one process: alone, and with the threads that other tests use as ranks.
#include "tests/contract/communicator_contract.h"

#include "tests/fakes/thread_communicator.h"
#include "worker/trainer/comm/solo_communicator.h"

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

INSTANTIATE_TEST_SUITE_P(All, CommunicatorContract, testing::ValuesIn(kCommunicatorContract),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace scalelab::trainer
