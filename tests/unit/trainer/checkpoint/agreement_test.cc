// Tests how often ranks exchange whether a checkpoint is due.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>

#include "worker/trainer/comm/solo_communicator.h"
#include "worker/trainer/loop/checkpoints.h"

namespace scalelab::trainer {
namespace {

// A rank whose device needs 20 ms for a step. As with NCCL, only an all-reduce waits for the device.
class SlowDevice : public SoloCommunicator {
 public:
  int size() const override { return 2; }
  std::unique_ptr<Work> StartAllReduce(const at::Tensor& tensor, ReduceOp op) override {
    ++all_reduces;
    std::this_thread::sleep_for(std::chrono::milliseconds(20) * std::exchange(steps, 0));
    return SoloCommunicator::StartAllReduce(tensor, op);
  }
  int steps = 0;  // number of steps that the device has not made yet
  int all_reduces = 0;
};

TEST(Agreement, IsAsFrequentIfTheHostIsAheadOfTheDevice) {
  const std::string directory = testing::TempDir() + "/agreement-" + std::to_string(getpid());
  setenv("SCALELAB_CHECKPOINT_DIR", directory.c_str(), 1);
  TrainingSpec spec;
  spec.checkpoint_every_minutes = 1000;
  SlowDevice device;
  std::filesystem::create_directories(directory);
  {
    EventWriter events(directory + "/events");
    Checkpoints checkpoints(spec, device, events);
    for (int64_t steps = 1; steps <= 60; ++steps) {
      ++device.steps;
      EXPECT_FALSE(checkpoints.Due(steps));
    }
  }
  // After steps 1, 2 and 3, and then after every twelfth, which is a quarter of a second.
  EXPECT_GE(device.all_reduces, 7);
  unsetenv("SCALELAB_CHECKPOINT_DIR");
  std::filesystem::remove_all(directory);
  for (const int number : {SIGTERM, SIGUSR1}) signal(number, SIG_DFL);  // Checkpoints ignores them at its end
}

}  // namespace
}  // namespace scalelab::trainer
