#include "worker/process/event_loop.h"

#include <gtest/gtest.h>
#include <unistd.h>

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

// A loop with a clock and random numbers of the test, which is stepped.
class SteppedEventLoop : public ::testing::Test {
 protected:
  absl::Duration now_ = absl::Seconds(7);
  EventLoop loop_{{[this] { return now_; }, [] { return uint64_t{42}; }}};
};

TEST_F(SteppedEventLoop, RunsTimersWhenItsClockHasReachedThem) {
  std::string order;
  EXPECT_EQ(loop_.NextStep(), absl::InfiniteDuration());
  loop_.After(absl::Hours(2), [&] { order += 'b'; });
  loop_.After(absl::Hours(1), [&] { order += 'a'; });
  EXPECT_EQ(loop_.NextStep(), now_ + absl::Hours(1));
  loop_.Step();
  EXPECT_EQ(order, "");
  now_ += absl::Hours(1);
  loop_.Step();
  EXPECT_EQ(order, "a");
  EXPECT_EQ(loop_.NextStep(), now_ + absl::Hours(1));
  EXPECT_EQ(loop_.Random(), 42);
}

TEST_F(SteppedEventLoop, HasToDoAtOnceWhatIsPostedOrReadable) {
  int posted = 0, read_bytes = 0, ends[2];
  ASSERT_EQ(pipe(ends), 0);
  loop_.Watch(ends[0], [&] {
    char byte;
    read_bytes += static_cast<int>(read(ends[0], &byte, 1));
  });
  EXPECT_EQ(loop_.NextStep(), absl::InfiniteDuration());
  loop_.Post([&] { ++posted; });
  EXPECT_EQ(loop_.NextStep(), now_);
  loop_.Step();
  EXPECT_EQ(posted, 1);
  EXPECT_EQ(loop_.NextStep(), absl::InfiniteDuration());
  ASSERT_EQ(write(ends[1], "x", 1), 1);
  EXPECT_EQ(loop_.NextStep(), now_);
  loop_.Step();
  EXPECT_EQ(read_bytes, 1);
  EXPECT_EQ(loop_.NextStep(), absl::InfiniteDuration());
  loop_.Unwatch(ends[0]);
  for (const int end : ends) close(end);
}

TEST(EventLoop, GivesUpWaitingAtTheLimit) {
  EventLoop loop;
  EXPECT_FALSE(loop.RunUntil([] { return false; }, absl::Milliseconds(1)));
}

}  // namespace
}  // namespace scalelab::worker
