#include "worker/trainer/device/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "catalog/device.h"
#include "worker/trainer/backends/communicators.h"
#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(GpuOfRank, IsTheVisibleGpuOfItsLocalRank) {
  EXPECT_EQ(GpuOfRank(0, 4), 0);
  EXPECT_EQ(GpuOfRank(3, 4), 3);
  EXPECT_EQ(GpuOfRank(2, 1), 0) << "the launcher shows each rank its own GPU";
}

TEST(GpuOfRank, IsAnErrorWithMoreRanksThanGpus) {
  EXPECT_THAT([] { GpuOfRank(2, 2); },
              ThrowsMessage<TrainerError>(HasSubstr("local rank 2 has no GPU of its own")));
}

TEST(CheckOneGpuEach, NamesTwoRanksThatShareAGpu) {
  EXPECT_NO_THROW(CheckOneGpuEach({"node-a 01", "node-a 02", "node-b 01"}));
  EXPECT_NO_THROW(CheckOneGpuEach({"", ""})) << "ranks on CPUs";
  const auto share = [] { CheckOneGpuEach({"node-a 01", "node-b 01", "node-a 01"}); };
  EXPECT_THAT(share, ThrowsMessage<TrainerError>(HasSubstr("ranks 0 and 2 on node-a would share one GPU")));
}

TEST(GpusMayBeShared, IsForTestsThatSetAVariable) {
  EXPECT_FALSE(GpusMayBeShared());
  setenv("SCALELAB_SHARED_GPU", "1", 1);
  EXPECT_TRUE(GpusMayBeShared());
  EXPECT_EQ(GpuOfRank(3, 2), 1);
  unsetenv("SCALELAB_SHARED_GPU");
}

TEST(AsksForDeterminism, TakesTheVariableThatCublasNeeds) {
  EXPECT_FALSE(AsksForDeterminism());
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 1);
  EXPECT_TRUE(AsksForDeterminism());
  unsetenv("CUBLAS_WORKSPACE_CONFIG");
}

// PyTorch's engines use NCCL on GPUs too. With MPI, which copies through the host, the comparison
// would be unfair.
TEST(BackendAuto, IsNcclOnGpus) {
  EXPECT_EQ(NativeBackend("auto", 2, /*gpus=*/true), "nccl");
  EXPECT_EQ(NativeBackend("", 2, true), "nccl");
  EXPECT_EQ(NativeBackend("auto", 2, false), "mpi");
  EXPECT_EQ(NativeBackend("auto", 1, true), "solo");
  EXPECT_EQ(NativeBackend("gloo", 2, true), "gloo");
  if (!NcclLibraryVersion().empty()) return;
  TrainingSpec spec;
  spec.ranks = 2;
  EXPECT_THAT([&] { MakeCommunicator(spec, {}, at::Device(at::kCUDA, 0)); },
              ThrowsMessage<TrainerError>(HasSubstr("backend \"auto\" means \"nccl\" on GPUs")));
}

TEST(DeviceName, IsTheModelOfTheCpu) { EXPECT_NE(DeviceName(at::kCPU), ""); }

}  // namespace
}  // namespace scalelab::trainer
