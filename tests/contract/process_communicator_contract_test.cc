// The communicator suite over processes, as RANKS BACKEND: run under mpirun, every process runs every test in
// the same order.
#include <cstdlib>

#include "tests/contract/communicator_contract.h"
#include "worker/trainer/comm/communicators.h"

namespace scalelab::trainer {
namespace {

std::unique_ptr<Communicator> shared;

class ProcessCommunicatorContract : public testing::TestWithParam<ContractCase> {};

TEST_P(ProcessCommunicatorContract, Holds) { GetParam().check(*shared); }

INSTANTIATE_TEST_SUITE_P(All, ProcessCommunicatorContract, testing::ValuesIn(kCommunicatorContract),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace

int Main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  TrainingSpec spec;
  spec.ranks = argc > 1 ? std::atoi(argv[1]) : 1;
  spec.backend = argc > 2 ? argv[2] : "mpi";
  LaunchEnvironment environment;
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "RANK"}) {
    if (const char* rank = std::getenv(name)) environment.rank = std::atoi(rank);
  }
  shared = MakeCommunicator(spec, environment);
  const int result = RUN_ALL_TESTS();
  shared.reset();
  return result;
}

}  // namespace scalelab::trainer

int main(int argc, char** argv) { return scalelab::trainer::Main(argc, argv); }
