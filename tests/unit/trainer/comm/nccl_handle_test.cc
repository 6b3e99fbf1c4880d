#include "worker/trainer/comm/nccl_handle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "tests/fakes/fake_nccl.h"

namespace scalelab::trainer {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

constexpr int kGpu = 3;

void Wait() {}

class NcclHandleTest : public testing::Test {
 protected:
  void Join() { handle_.Join(handle_.NewId(), 2, 0, kGpu, Wait); }

  FakeNccl nccl_;
  NcclHandle handle_{FakeNccl::Functions(), NcclHandle::Mode::kBlocking, milliseconds(200)};
};

TEST_F(NcclHandleTest, ConnectsABlockingCommunicatorOfItsGpuAndDestroysIt) {
  Join();
  EXPECT_EQ(nccl_.gpu, kGpu);
  EXPECT_TRUE(nccl_.blocking);
  handle_.Finish(Wait);
  EXPECT_TRUE(nccl_.destroyed.Wait());
  EXPECT_THROW(handle_.Call([](ncclComm*) { return 0; }, Wait), std::runtime_error);
}

TEST_F(NcclHandleTest, JoiningEndsWhenTheCallerGivesUpAlthoughNcclDoesNotReturn) {
  nccl_.connect_waits = true;
  EXPECT_THROW(handle_.Join(handle_.NewId(), 2, 0, kGpu,
                            [&] {
                              if (nccl_.connected.Reached()) throw std::runtime_error("too late");
                            }),
               std::runtime_error);
  nccl_.connected.Open();
  EXPECT_TRUE(nccl_.aborted.Wait()) << "nobody uses the communicator that was made too late";
}

// A call that waits for another rank must not hold a lock that the abort needs.
TEST_F(NcclHandleTest, AbortEndsACallThatWaitsForAnotherRank) {
  Join();
  auto call = std::async(std::launch::async, [&] {
    handle_.Call([&](ncclComm*) { return nccl_.aborted.Wait() ? 5 : 0; }, Wait);
  });
  ASSERT_TRUE(nccl_.aborted.Reached());
  auto abort = std::async(std::launch::async, [&] { handle_.Abort(); });
  ASSERT_EQ(abort.wait_for(seconds(15)), std::future_status::ready);
  EXPECT_THROW(call.get(), std::runtime_error) << "an aborted call is no success";
}

// NCCL's abort waits until graphs are destroyed, by a thread that may use this object meanwhile.
TEST_F(NcclHandleTest, AnAbortThatDoesNotReturnBlocksNobody) {
  Join();
  nccl_.abort_waits = true;
  auto abort = std::async(std::launch::async, [&] { handle_.Abort(); });
  ASSERT_TRUE(nccl_.abort_ends.Reached());
  auto other = std::async(std::launch::async, [&] {
    EXPECT_EQ(handle_.AsyncError(), "");
    EXPECT_THROW(handle_.Call([](ncclComm*) { return 0; }, Wait), std::runtime_error);
  });
  EXPECT_EQ(other.wait_for(seconds(10)), std::future_status::ready);
  EXPECT_EQ(abort.wait_for(seconds(15)), std::future_status::ready) << "the wait has a limit";
  nccl_.abort_ends.Open();
}

TEST_F(NcclHandleTest, ReportsTheFirstLineOfAnError) {
  Join();
  nccl_.state = 6;
  EXPECT_EQ(handle_.AsyncError(), "result 6");
  nccl_.state = NcclFunctions::kInProgress;
  EXPECT_EQ(handle_.AsyncError(), "");
  try {
    handle_.Call([](ncclComm*) { return 2; }, Wait);
    FAIL() << "an error is thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "result 2");
  }
}

}  // namespace
}  // namespace scalelab::trainer
