// The communicator contract over processes. Arguments: RANKS BACKEND [cuda]. Runs under mpirun; every process
// runs all tests in the same order. With "cuda" the tensors are on a GPU. Exits with status 77 and a reason
// if the machine or the build does not support this.
#include <signal.h>

#include <cstdio>
#include <cstdlib>

#include "tests/contract/communicator_contract.h"
#include "tests/contract/gpu_tensors.h"
#include "worker/trainer/backends/communicators.h"
#include "worker/trainer/device/device.h"

namespace scalelab::trainer {
namespace {

std::unique_ptr<Communicator> shared;

class ProcessCommunicatorContract : public testing::TestWithParam<ContractCase> {};

TEST_P(ProcessCommunicatorContract, Holds) { GetParam().check(*shared); }

INSTANTIATE_TEST_SUITE_P(All, ProcessCommunicatorContract, testing::ValuesIn(kCommunicatorContract),
                         [](const auto& info) { return std::string(info.param.name); });

// A write to a rank whose process has ended must fail with an error that names this rank. By default,
// SIGPIPE would end the writing process first.
TEST(ProcessCommunicator, IgnoresSigpipe) {
  struct sigaction action {};
  sigaction(SIGPIPE, nullptr, &action);
  EXPECT_EQ(action.sa_handler, SIG_IGN);
}

int Skip(const std::string& why) {
  std::printf("skipped: %s\n", why.c_str());
  return 77;
}

}  // namespace

int Main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  TrainingSpec spec;
  spec.ranks = argc > 1 ? std::atoi(argv[1]) : 1;
  spec.backend = argc > 2 ? argv[2] : "mpi";
  const bool on_gpu = argc > 3;
  LaunchEnvironment environment;
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "RANK"}) {
    if (const char* rank = std::getenv(name)) environment.rank = std::atoi(rank);
  }
  at::Device device = at::kCPU;
  if (spec.backend == "nccl" || on_gpu) {
    spec.device = "cuda";
    try {
      device = ChooseDevice(spec, environment.rank);
    } catch (const TrainerError& error) {
      return Skip(error.what());
    }
    const int gpus = VisibleGpus();
    if (spec.backend == "nccl" && gpus < spec.ranks) {
      return Skip("backend nccl needs a GPU for each of " + std::to_string(spec.ranks) +
                  " ranks, and there " + (gpus == 1 ? "is 1" : "are " + std::to_string(gpus)));
    }
    PrepareDevice(device, /*tf32=*/false);
  }
  shared = MakeCommunicator(spec, environment, device);
  if (on_gpu) shared = std::make_unique<GpuTensors>(std::move(shared), device);
  const int result = RUN_ALL_TESTS();
  shared.reset();
  return result;
}

}  // namespace scalelab::trainer

int main(int argc, char** argv) { return scalelab::trainer::Main(argc, argv); }
