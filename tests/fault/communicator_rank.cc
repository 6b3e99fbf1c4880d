// One rank that reduces tensors in an endless loop: communicator_rank BACKEND RANKS TIMEOUT_S DIRECTORY
// LEAVER [groups|receive|pair]. Writes DIRECTORY/pid-RANK once the loop is running, DIRECTORY/steps-RANK, the
// number of steps, about every second, and DIRECTORY/error-RANK when an operation fails. Rank LEAVER exits
// without an error after a few operations. With "groups", the odd ranks and the even ranks are two groups that
// reduce separately. With "receive", LEAVER calls no further operation once the loop is running, and the others
// wait for a tensor from any rank, which no rank sends. With "pair", ranks 0 and 2 wait for a tensor from each
// other, and the other ranks call no further operation.
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "worker/trainer/backends/communicators.h"
#include "worker/trainer/comm/mpi_communicator.h"
#include "worker/trainer/device/device.h"
#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

// Writes the file atomically.
void Write(const std::string& path, const std::string& text) {
  std::ofstream(path + ".new") << text << "\n";
  std::filesystem::rename(path + ".new", path);
}

// Waits until `expected` of the ranks have failed, because the abort that follows would end a slower rank before it has found out.
void AwaitErrors(const std::string& directory, int ranks, int expected) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  const auto failed = [&] {
    int count = 0;
    for (int r = 0; r < ranks; ++r)
      count += std::filesystem::exists(directory + "/error-" + std::to_string(r));
    return count;
  };
  while (failed() < expected && std::chrono::steady_clock::now() < limit)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

int Main(int argc, char** argv) {
  TrainingSpec spec;
  spec.backend = argv[1];
  spec.ranks = std::atoi(argv[2]);
  spec.comm_timeout_s = std::atof(argv[3]);
  const std::string directory = argv[4];
  const int leaver = std::atoi(argv[5]);
  LaunchEnvironment environment;
  for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK"}) {
    if (const char* rank = std::getenv(name)) environment.rank = std::atoi(rank);
  }
  const std::string number = std::to_string(environment.rank);
  try {
    const auto all = MakeCommunicator(spec, environment, ChooseDevice(spec, environment.rank));
    const at::Tensor tensor = at::ones({1 << 20}), few = at::ones({100});
    const std::string mode = argc > 6 ? argv[6] : "";
    const auto group = mode == "groups" ? all->Split(environment.rank % 2) : nullptr;
    Communicator* const communicator = group ? group.get() : all.get();
    all->AllReduce(few, ReduceOp::kAverage);
    auto reported = std::chrono::steady_clock::now();
    for (int i = 0;; ++i) {
      // Use several sizes, because communicators may use a different algorithm for each of them.
      communicator->AllReduce(tensor, ReduceOp::kAverage);
      communicator->AllReduce(few, ReduceOp::kAverage);
      communicator->StartAllReduce(few, ReduceOp::kAverage)->Wait();
      if (i == 10) Write(directory + "/pid-" + number, std::to_string(getpid()));
      if (i == 10 && mode == "receive")
        environment.rank == leaver ? pause() : communicator->ReceiveFromAny(few);
      if (i == 10 && mode == "pair") {
        if (environment.rank % 2 == 1) pause();
        communicator->StartReceive(few, 2 - environment.rank)->Wait();
      }
      if (i == 20 && environment.rank == leaver) return 0;
      if (std::chrono::steady_clock::now() - reported > std::chrono::seconds(1)) {
        Write(directory + "/steps-" + number, std::to_string(i));
        reported = std::chrono::steady_clock::now();
      }
    }
  } catch (const TrainerError& e) {
    Write(directory + "/error-" + number, e.what());
    const auto ranks = static_cast<int>(spec.ranks);
    const bool pair = argc > 6 && std::string(argv[6]) == "pair";  // the test kills both odd ranks
    if (spec.backend == "mpi") AwaitErrors(directory, ranks, pair ? ranks / 2 : ranks - 1);
  }
  AbortOtherRanks(1);
  return 1;
}

}  // namespace
}  // namespace scalelab::trainer

int main(int argc, char** argv) { return argc == 6 || argc == 7 ? scalelab::trainer::Main(argc, argv) : 2; }
