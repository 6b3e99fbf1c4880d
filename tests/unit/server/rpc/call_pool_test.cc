#include "server/rpc/call_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"

namespace scalelab::server {
namespace {

TEST(CallPool, RefusesWorkAtOnceWhenTheQueueIsFull) {
  std::promise<void> started, release;
  std::shared_future<void> released = release.get_future().share();
  std::atomic<int> done = 0;
  absl::Status refused;
  {
    CallPool pool("reads", 1, 2);
    pool.Run([&](absl::Status) {
      started.set_value();
      released.wait();
      ++done;
    });
    started.get_future().wait();
    for (int i = 0; i < 2; ++i) pool.Run([&](absl::Status status) { done += status.ok() ? 1 : 0; });
    pool.Run([&](absl::Status status) { refused = status; });
    EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
    release.set_value();
  }
  EXPECT_EQ(done, 3) << "the destructor runs what is queued";
}

TEST(CallPool, StopsWhileAThreadIsBlockedAndRefusesTheRest) {
  auto release = std::make_shared<std::promise<void>>();
  std::promise<void> started, ended;
  auto pool = std::make_unique<CallPool>("reads", 1, 8);
  pool->Run([&, released = release->get_future().share()](const absl::Status&) {
    started.set_value();
    released.wait();
    ended.set_value();
  });
  started.get_future().wait();
  absl::Status queued, late;
  pool->Run([&](absl::Status status) { queued = status; });
  EXPECT_FALSE(pool->Stop(absl::Milliseconds(10)));
  EXPECT_TRUE(absl::IsUnavailable(queued)) << queued;
  pool->Run([&](absl::Status status) { late = status; });
  EXPECT_TRUE(absl::IsUnavailable(late)) << late;
  pool.reset();  // the blocked thread uses what it shares with the pool
  release->set_value();
  ended.get_future().wait();
}

TEST(CallPool, ReportsThatAllThreadsHaveEnded) {
  CallPool pool("reads", 2, 8);
  std::atomic<int> done = 0;
  for (int i = 0; i < 4; ++i) pool.Run([&](absl::Status status) { done += status.ok() ? 1 : 0; });
  EXPECT_TRUE(pool.Stop(absl::InfiniteDuration()));
  EXPECT_EQ(done, 4);
}

TEST(CallPool, WorksOnOneSubjectBlockOneThreadOnly) {
  absl::Notification started, release, other;
  absl::BlockingCounter ended(5);
  int refused = 0;
  CallPool pool("reads", 2, 32);
  pool.Run(
      [&](const absl::Status&) {
        started.Notify();
        release.WaitForNotification();
        ended.DecrementCount();
      },
      "a");
  started.WaitForNotification();
  for (int i = 0; i < 20; ++i) {
    pool.Run(
        [&](const absl::Status& status) {
          if (!status.ok()) {
            EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
            ++refused;
            return;
          }
          release.WaitForNotification();
          ended.DecrementCount();
        },
        "a");
  }
  EXPECT_EQ(refused, 16) << "four wait";
  pool.Run([&](const absl::Status&) { other.Notify(); }, "b");
  EXPECT_TRUE(other.WaitForNotificationWithTimeout(absl::Seconds(20)));
  release.Notify();
  ended.Wait();
}

}  // namespace
}  // namespace scalelab::server
