#include "worker/process/event_loop.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "tests/fakes/wall_clock.h"

namespace scalelab::worker {
namespace {

TEST(EventLoop, RunsTimersInOrderAndNotThoseThatWereCancelled) {
  EventLoop loop;
  std::string order;
  loop.After(absl::Milliseconds(2), [&] { order += 'b'; });
  loop.After(absl::Milliseconds(1), [&] { order += 'a'; });
  const EventLoop::TimerId never = loop.After(absl::Milliseconds(1), [&] { order += 'x'; });
  loop.After(absl::Milliseconds(3), [&] { loop.Stop(); });
  loop.Cancel(never);
  loop.Run();
  EXPECT_EQ(order, "ab");
}

TEST(EventLoop, WaitsAsLongAsBeforeWhenTheWallClockIsSet) {
  for (const int64_t shift : {-3600, 3600}) {
    EventLoop loop;
    WallClockShift unset(0);
    int turns = 0;
    loop.After(absl::ZeroDuration(), [&] { wall_clock_shift = shift; });
    for (int i = 1; i <= 20; ++i) loop.After(absl::Milliseconds(10 * i), [&] { ++turns; });
    EXPECT_FALSE(loop.RunUntil([&] { return turns == 20; }, absl::Milliseconds(100))) << shift;
    EXPECT_GE(turns, 5) << shift;
  }
}

TEST(EventLoop, RunsWhatOtherThreadsPostOnItsOwnThread) {
  EventLoop loop;
  int calls = 0;
  std::thread::id where;
  std::thread other([&] {
    for (int i = 0; i < 1000; ++i) {
      loop.Post([&] {
        where = std::this_thread::get_id();
        ++calls;
      });
    }
  });
  EXPECT_TRUE(loop.RunUntil([&] { return calls == 1000; }, absl::Seconds(30)));
  other.join();
  EXPECT_EQ(where, std::this_thread::get_id());
}

TEST(EventLoop, GivesUpWaitingAtTheLimit) {
  EventLoop loop;
  EXPECT_FALSE(loop.RunUntil([] { return false; }, absl::Milliseconds(1)));
}

}  // namespace
}  // namespace scalelab::worker
