#include "server/services/reader_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

namespace scalelab::server {
namespace {

TEST(ReaderPool, RefusesWorkAtOnceWhenTheQueueIsFull) {
  std::promise<void> started, release;
  std::shared_future<void> released = release.get_future().share();
  std::atomic<int> done = 0;
  absl::Status refused;
  {
    ReaderPool pool(1, 2);
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

}  // namespace
}  // namespace scalelab::server
