#include "server/time/steady_mutex.h"

#include <gtest/gtest.h>

#include <thread>

#include "server/time/clock.h"
#include "tests/fakes/wall_clock.h"

namespace scalelab::server {
namespace {

struct Turns {
  // Takes `count` turns: waits until the number of turns is `parity` modulo 2, and adds one.
  void Take(int parity, int count) {
    SteadyMutexLock lock(&mutex);
    for (int i = 0; i < count; ++i) {
      while (turns % 2 != parity) mutex.WaitFor(absl::InfiniteDuration());
      ++turns;
      mutex.Signal();
    }
  }

  SteadyMutex mutex;
  int turns ABSL_GUARDED_BY(mutex) = 0;
};

TEST(SteadyMutex, ASignalEndsAWaitWithoutATimeout) {
  Turns turns;
  std::thread other([&] { turns.Take(1, 1000); });
  turns.Take(0, 1000);
  other.join();
  SteadyMutexLock lock(&turns.mutex);
  EXPECT_EQ(turns.turns, 2000);
}

TEST(SteadyMutex, AWaitWithoutASignalEndsAfterItsTimeout) {
  SteadyMutex mutex;
  SteadyMutexLock lock(&mutex);
  const absl::Duration until = Clock::System().Steady() + absl::Milliseconds(20);
  while (Clock::System().Steady() < until) mutex.WaitFor(until - Clock::System().Steady());
}

TEST(SteadyMutex, AConditionThatAnotherThreadMeetsEndsTheWait) {
  Turns turns;
  std::thread other([&] { turns.Take(0, 1); });
  {
    SteadyMutexLock lock(&turns.mutex);
    const auto taken = [&] {
      turns.mutex.AssertHeld();
      return turns.turns == 1;
    };
    EXPECT_TRUE(turns.mutex.AwaitWithTimeout(taken, absl::InfiniteDuration()));
  }
  other.join();
}

TEST(SteadyMutex, AConditionThatIsNotMetIsAwaitedForTheTimeoutAlsoIfTheWallClockIsSet) {
  for (const int64_t seconds : {-3600, 3600}) {
    const WallClockShift shift(seconds);
    SteadyMutex mutex;
    SteadyMutexLock lock(&mutex);
    const absl::Duration begin = Clock::System().Steady();
    EXPECT_FALSE(mutex.AwaitWithTimeout([] { return false; }, absl::Milliseconds(20)));
    EXPECT_GE(Clock::System().Steady() - begin, absl::Milliseconds(20));
  }
}

}  // namespace
}  // namespace scalelab::server
