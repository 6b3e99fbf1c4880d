#include "worker/process/event_loop.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>

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
