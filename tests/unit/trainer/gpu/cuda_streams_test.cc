// Tests work on several streams of a GPU. Skips without a GPU.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/fakes/thread_communicator.h"
#include "worker/trainer/comm/staged_communicator.h"
#include "worker/trainer/device/device.h"
#include "worker/trainer/strategies/horovod/background_loop.h"

namespace scalelab::trainer {
namespace {

// Rank 1 receives a tensor that only rank 0 has submitted. Its memory belongs to the stream of the background
// thread, which must not use it for the next step before the work of the caller's stream has read it.
TEST(CudaStreams, BackgroundThreadKeepsReceivedTensorsUntilTheCallersStreamHasReadThem) {
  if (VisibleGpus() == 0) GTEST_SKIP() << "needs a GPU and a build with CUDA; this process sees no GPU";
  const at::Device gpu(at::kCUDA, 0);
  OnRanks(2, [&](ThreadCommunicator& rank) {
    StagedCommunicator communicator(rank.Split(0), gpu);
    horovod::BackgroundLoop loop(communicator, gpu, {}, rank.Split(0));
    // Returns what this rank receives in a step in which rank 0 submits a tensor.
    const auto step = [&](float value) {
      loop.Open();
      if (rank.rank() == 0) loop.Submit("tensor", at::full({1000}, value, gpu));
      return loop.Close();
    };
    std::vector<std::pair<std::string, at::Tensor>> received = step(2);
    EXPECT_EQ(received.size(), rank.rank() == 0 ? 0u : 1u);
    at::Tensor slow, copy;
    if (!received.empty()) {
      slow = at::rand({4096, 4096}, gpu);
      for (int i = 0; i < 200; ++i) slow = at::mm(slow, slow) / 4096;
      copy = received[0].second.clone();  // the GPU makes the copy after the multiplications
    }
    received.clear();
    step(4);
    if (copy.defined()) {
      EXPECT_TRUE(copy.eq(1).all().item<bool>()) << "the next step has overwritten it";
    }
  });
}

}  // namespace
}  // namespace scalelab::trainer
