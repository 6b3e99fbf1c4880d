#include "worker/trainer/comm/nccl_watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <mutex>
#include <thread>

#include "tests/fakes/fake_nccl.h"
#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

// An operation on the GPU that ends when the test, or the abort, ends it.
class KernelOperation : public DeviceOperation {
 public:
  KernelOperation() : DeviceOperation("all-reduce", DeviceEvent(at::kCPU), {}) {}
  bool Ended() const override { return ended; }
  std::atomic<bool> ended = false;
};

class NcclWatchdogTest : public testing::Test {
 protected:
  NcclWatchdogTest() { watch_.Join({watch_.endpoint()}, "token"); }

  std::unique_ptr<NcclWatchdog> Watchdog(milliseconds timeout) {
    return std::make_unique<NcclWatchdog>(
        watch_, timeout,
        NcclWatchdog::Hooks{.select_gpu = [this] { selected_ = std::this_thread::get_id(); },
                            .trouble =
                                [this] {
                                  const bool selected = selected_ == std::this_thread::get_id();
                                  std::call_once(looked_, [&] { first_look_.set_value(selected); });
                                  return std::string();
                                },
                            .abort =
                                [this] {
                                  operation_->ended = true;  // an aborted kernel exits
                                  nccl_.aborted.Open();
                                  if (nccl_.abort_waits) nccl_.abort_ends.Wait();
                                }});
  }

  PeerWatch watch_{0, 1, "127.0.0.1"};
  FakeNccl nccl_;
  std::shared_ptr<KernelOperation> operation_ = std::make_shared<KernelOperation>();
  std::thread::id selected_;
  std::once_flag looked_;
  std::promise<bool> first_look_;  // whether the GPU was selected then
};

TEST_F(NcclWatchdogTest, AnAbortedOperationIsNeverASuccess) {
  nccl_.abort_waits = true;
  const auto watchdog = Watchdog(milliseconds(50));
  watchdog->Add(operation_);
  auto wait = std::async(std::launch::async, [&] { watchdog->Await(*operation_); });
  ASSERT_TRUE(nccl_.abort_ends.Reached());
  // The kernel has ended, with arbitrary data, and the abort is still in progress.
  const bool returned = wait.wait_for(seconds(20)) == std::future_status::ready;
  EXPECT_TRUE(returned) << "the waiting thread is notified before the abort, which may wait for its graphs";
  if (returned) {
    EXPECT_THROW(wait.get(), TrainerError);
  }
  EXPECT_THROW(watchdog->ThrowIfFailed(), TrainerError);
  EXPECT_THROW(watchdog->Drain(), TrainerError);
  nccl_.abort_ends.Open();
}

TEST_F(NcclWatchdogTest, AThreadThatFindsAFailureDoesNotWaitForTheAbort) {
  nccl_.abort_waits = true;
  const auto watchdog = Watchdog(seconds(60));
  auto fail = std::async(std::launch::async, [&] { watchdog->Fail("all-reduce failed (text)", -1); });
  const bool returned = fail.wait_for(seconds(15)) == std::future_status::ready;
  nccl_.abort_ends.Open();
  EXPECT_TRUE(returned) << "it owns the graphs that the abort waits for";
  EXPECT_TRUE(nccl_.aborted.Wait());
  try {
    fail.get();
    FAIL() << "a failure is thrown";
  } catch (const TrainerError& error) {
    EXPECT_THAT(error.what(), HasSubstr("all-reduce failed (text)"));
  }
}

// The first operation connects ranks, in a call that waits for them.
TEST_F(NcclWatchdogTest, ACallThatEnqueuesAnOperationHasATimeout) {
  const auto watchdog = Watchdog(milliseconds(50));
  watchdog->Enqueuing(operation_);
  ASSERT_TRUE(nccl_.aborted.Wait()) << "the abort ends the call";
  try {
    watchdog->ThrowIfFailed();
    FAIL() << "a failure is thrown";
  } catch (const TrainerError& error) {
    EXPECT_THAT(error.what(), HasSubstr("all-reduce timed out after 0.05 s"));
  }
}

TEST_F(NcclWatchdogTest, AnOperationThatEndsInTimeSucceeds) {
  const auto watchdog = Watchdog(seconds(60));
  watchdog->Enqueuing(operation_);
  watchdog->Enqueuing(nullptr);
  watchdog->Add(operation_);
  operation_->ended = true;
  watchdog->Drain();
  watchdog->Await(*operation_);
}

// Otherwise each rank would make a context on the first GPU of its node.
TEST_F(NcclWatchdogTest, SelectsTheGpuOnItsThreadBeforeAnythingElse) {
  const auto watchdog = Watchdog(seconds(60));
  watchdog->Add(operation_);
  std::future<bool> look = first_look_.get_future();
  ASSERT_EQ(look.wait_for(seconds(60)), std::future_status::ready);
  EXPECT_TRUE(look.get());
  operation_->ended = true;
  watchdog->Drain();
}

// Other threads use the point on the stream while the watchdog marks the operation as ended.
TEST_F(NcclWatchdogTest, TheEndOfAnOperationStaysThePointOnTheStream) {
  operation_->end = DeviceEvent(at::kCPU);
  const double duration = operation_->end.SecondsSince(operation_->begin);
  std::this_thread::sleep_for(milliseconds(2));  // so that the clock has another value
  operation_->Complete(nullptr);
  EXPECT_EQ(operation_->end.SecondsSince(operation_->begin), duration);
}

}  // namespace
}  // namespace scalelab::trainer
