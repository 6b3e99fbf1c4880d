#include "server/rpc/call_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "tests/fakes/wall_clock.h"

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
  pool.reset();  // the blocked thread still uses the state that it shares with the pool
  release->set_value();
  ended.get_future().wait();
}

TEST(CallPool, TheGraceOfStopFollowsTheSteadyClock) {
  absl::Notification started, stop;
  std::atomic<bool> stopping = false;
  CallPool pool("reads", 1, 1);
  pool.Run([&](const absl::Status&) {
    started.Notify();
    stop.WaitForNotification();
    while (!stopping) {
      pool.Run([&](const absl::Status& status) {
        if (absl::IsUnavailable(status)) stopping = true;
      });
    }
  });
  started.WaitForNotification();
  const WallClockShift shift(-3600);  // a time limit by the wall clock would already be over
  stop.Notify();
  EXPECT_TRUE(pool.Stop(absl::Minutes(1)));
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
      {"a", ""});
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
        {"a", ""});
  }
  EXPECT_EQ(refused, 16) << "four wait";
  pool.Run([&](const absl::Status&) { other.Notify(); }, {"b", ""});
  EXPECT_TRUE(other.WaitForNotificationWithTimeout(absl::Seconds(20)));
  release.Notify();
  ended.Wait();
}

TEST(CallPool, WorksOnOneFilesystemTakeHalfOfTheThreadsAndOfTheQueue) {
  absl::Notification release, elsewhere;
  absl::BlockingCounter both_began(2);
  std::atomic<int> began = 0, ended = 0;
  int refused = 0;
  CallPool pool("reads", 4, 64);
  for (int i = 0; i < 50; ++i) {
    pool.Run(
        [&](const absl::Status& status) {
          if (!status.ok()) {
            EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
            ++refused;
            return;
          }
          if (++began <= 2) both_began.DecrementCount();
          release.WaitForNotification();
          ++ended;
        },
        {absl::StrCat("run ", i), "nfs"});
    if (i == 1) both_began.Wait();
  }
  EXPECT_EQ(refused, 50 - 2 - 32) << "two run and half of the queue waits";
  pool.Run([&](const absl::Status&) { elsewhere.Notify(); }, {"run 50", "disk"});
  EXPECT_TRUE(elsewhere.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_EQ(began, 2);
  release.Notify();
  EXPECT_TRUE(pool.Stop(absl::InfiniteDuration()));
  EXPECT_EQ(ended, 34);
}

// A pool of one thread, which is busy until Release.
class BusyPool : public testing::Test {
 protected:
  BusyPool() {
    pool_.Run([this](const absl::Status&) {
      started_.Notify();
      release_.WaitForNotification();
    });
    started_.WaitForNotification();
  }
  // Adds a work that records its name.
  absl::Status Run(const std::string& client, const std::string& name, const std::string& subject = "") {
    absl::Status result;
    pool_.Run(
        [&, name](const absl::Status& status) {
          if (status.ok())
            order_.push_back(name);
          else
            result = status;
        },
        {subject, ""}, client);
    return result;
  }
  void Release() {
    release_.Notify();
    EXPECT_TRUE(pool_.Stop(absl::InfiniteDuration()));
  }
  absl::Notification started_, release_;
  std::vector<std::string> order_;
  CallPool pool_{"reads", 1, 16};
};

TEST_F(BusyPool, OneClientTakesAQuarterOfTheQueue) {
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(Run("ann", "a").ok()) << i;
  const absl::Status refused = Run("ann", "a");
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("ann has 4 reads"));
  EXPECT_TRUE(Run("bob", "b").ok());
  for (int i = 0; i < 11; ++i) EXPECT_TRUE(Run("", "own").ok()) << "the service itself has no share";
  EXPECT_EQ(pool_.waiting(), 16u);
  EXPECT_EQ(Run("eve", "e").code(), absl::StatusCode::kResourceExhausted) << "the queue is full";
  Release();
  EXPECT_EQ(order_.size(), 16u);
}

TEST_F(BusyPool, ServesClientsInTurnAndTheWorksOfEachInOrder) {
  for (const char* name : {"a1", "a2", "a3"}) ASSERT_TRUE(Run("ann", name).ok());
  for (const char* name : {"b1", "b2"}) ASSERT_TRUE(Run("bob", name).ok());
  ASSERT_TRUE(Run("eve", "e1").ok());
  Release();
  EXPECT_THAT(order_, testing::ElementsAre("a1", "b1", "e1", "a2", "b2", "a3"));
}

TEST(CallPool, AClientWhoseSubjectIsBusyMissesItsTurn) {
  absl::Notification started, release;
  CallPool pool("reads", 2, 16);
  pool.Run(
      [&](const absl::Status&) {
        started.Notify();
        release.WaitForNotification();
      },
      {"disk", ""}, "ann");
  started.WaitForNotification();
  std::atomic<bool> blocked_ran = false;
  absl::Notification others;
  pool.Run([&](const absl::Status&) { blocked_ran = true; }, {"disk", ""}, "ann");
  pool.Run([&](const absl::Status&) {}, {}, "bob");
  pool.Run([&](const absl::Status&) { others.Notify(); }, {}, "ann");
  EXPECT_TRUE(others.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_FALSE(blocked_ran);
  release.Notify();
}

}  // namespace
}  // namespace scalelab::server
