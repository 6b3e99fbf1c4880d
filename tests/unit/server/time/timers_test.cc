#include "server/time/timers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "server/time/clock.h"
#include "tests/fakes/wall_clock.h"

namespace scalelab::server {
namespace {

using testing::ElementsAre;

absl::Duration Now() { return Clock::System().Steady(); }

// Waits for at most 20 s of the steady clock.
bool IsSet(std::promise<void>& promise) {
  return promise.get_future().wait_for(std::chrono::seconds(20)) == std::future_status::ready;
}

// Timers whose thread is blocked until Release.
class BlockedTimersTest : public testing::Test {
 protected:
  BlockedTimersTest() {
    blocker_ = timers_.Call(absl::ZeroDuration(), [this] {
      started_.set_value();
      release_.get_future().wait();
    });
    EXPECT_TRUE(IsSet(started_));
  }
  ~BlockedTimersTest() override {
    if (!released_) Release();
  }
  void Release() {
    released_ = true;
    release_.set_value();
  }
  Timers::Timer Add(absl::Duration delay, const std::string& name) {
    return timers_.Call(delay, [this, name, due = Now() + delay] {
      if (Now() < due) called_.push_back("too early:");
      called_.push_back(name);
    });
  }
  // Releases the thread, and waits until a function was called that is due after `delay`.
  void ReleaseFor(absl::Duration delay) {
    std::promise<void> called;
    const Timers::Timer last = timers_.Call(delay, [&called] { called.set_value(); });
    Release();
    EXPECT_TRUE(IsSet(called));
  }

  std::promise<void> started_, release_;
  bool released_ = false;
  std::vector<std::string> called_;  // by the thread of timers_
  Timers timers_;
  Timers::Timer blocker_;
};

TEST_F(BlockedTimersTest, FunctionsAreCalledInTheOrderOfTheirDueTimes) {
  const Timers::Timer third = Add(absl::Milliseconds(30), "third");
  const Timers::Timer first = Add(absl::Milliseconds(10), "first");
  const Timers::Timer second = Add(absl::Milliseconds(20), "second");
  ReleaseFor(absl::Milliseconds(40));
  EXPECT_THAT(called_, ElementsAre("first", "second", "third"));
}

TEST_F(BlockedTimersTest, ACancelledFunctionIsDestroyedAtOnceAndNotCalled) {
  const auto owned = std::make_shared<int>(0);
  const auto add = [&] {
    return timers_.Call(absl::ZeroDuration(), [this, owned] { called_.push_back("no"); });
  };
  Timers::Timer cancelled = add(), replaced = add();
  {
    const Timers::Timer destroyed = add();
    EXPECT_EQ(owned.use_count(), 4);
  }
  EXPECT_EQ(owned.use_count(), 3);
  cancelled.Cancel();
  EXPECT_EQ(owned.use_count(), 2);
  replaced = Add(absl::Milliseconds(10), "yes");
  EXPECT_EQ(owned.use_count(), 1);
  cancelled.Cancel();  // has no effect
  const Timers::Timer moved = std::move(replaced);
  ReleaseFor(absl::Milliseconds(20));
  EXPECT_THAT(called_, ElementsAre("yes"));
}

TEST_F(BlockedTimersTest, StopWaitsForTheCallInProgressAndDropsTheOtherFunctions) {
  const auto owned = std::make_shared<int>(0);
  const auto add = [&](absl::Duration delay) {
    return timers_.Call(delay, [this, owned] { called_.push_back("no"); });
  };
  const Timers::Timer due = add(absl::ZeroDuration()), later = add(absl::Hours(1));
  std::atomic<bool> stopped = false;
  std::thread stop([&] {
    timers_.Stop();
    stopped = true;
  });
  // After the beginning of Stop, a function is destroyed at once.
  bool stopping = false;
  for (const absl::Duration end = Now() + absl::Seconds(20); !stopping && Now() < end;) {
    const long before = owned.use_count();
    const Timers::Timer probe = add(absl::Hours(1));
    stopping = owned.use_count() == before;
  }
  EXPECT_TRUE(stopping);
  EXPECT_FALSE(stopped) << "a call is in progress";
  Release();
  stop.join();
  EXPECT_EQ(owned.use_count(), 1);
  EXPECT_THAT(called_, ElementsAre());
}

TEST(Timers, AFunctionMayAddAFunctionAndDestroyItsOwnTimer) {
  std::promise<void> assigned, called;
  Timers timers;
  std::optional<Timers::Timer> own, next;
  own = timers.Call(absl::ZeroDuration(), [&] {
    assigned.get_future().wait();
    own.reset();
    next = timers.Call(absl::ZeroDuration(), [&] { called.set_value(); });
  });
  assigned.set_value();
  EXPECT_TRUE(IsSet(called));
  timers.Stop();
}

TEST(Timers, AFunctionThatIsDueEarlierThanTheOthersEndsTheWaitOfTheThread) {
  Timers timers;
  const Timers::Timer never = timers.Call(absl::InfiniteDuration(), [] {});
  const Timers::Timer later = timers.Call(absl::Hours(1), [] {});
  for (int i = 0; i < 100; ++i) {  // at some of them, the thread waits already
    std::promise<void> called;
    const Timers::Timer now = timers.Call(absl::ZeroDuration(), [&called] { called.set_value(); });
    ASSERT_TRUE(IsSet(called)) << i;
  }
}

TEST(Timers, FollowTheSteadyClock) {
  const WallClockShift shift(3600);  // a wait until a time of the wall clock would end an hour later
  std::promise<void> called;
  Timers timers;
  const absl::Duration begin = Now();
  const Timers::Timer timer = timers.Call(absl::Milliseconds(20), [&called] { called.set_value(); });
  ASSERT_TRUE(IsSet(called));
  EXPECT_GE(Now() - begin, absl::Milliseconds(20));
}

}  // namespace
}  // namespace scalelab::server
