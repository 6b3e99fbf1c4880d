#include "db/sqlite/phase_fair_lock.h"

#include <gtest/gtest.h>

#include <atomic>
#include <shared_mutex>
#include <thread>
#include <vector>

namespace scalelab::db {
namespace {

TEST(PhaseFairLock, KeepsWritersAloneAndReadersTogether) {
  PhaseFairLock lock;
  int first = 0, second = 0;  // equal whenever no writer holds the lock
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 2000; ++n) {
        std::lock_guard writing(lock);
        ++first;
        std::this_thread::yield();
        ++second;
      }
    });
  }
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 2000; ++n) {
        std::shared_lock reading(lock);
        ASSERT_EQ(first, second);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(first, 4000);
}

TEST(PhaseFairLock, TwoReadAtOnce) {
  PhaseFairLock lock;
  std::shared_lock reading(lock);
  std::thread([&] { std::shared_lock too(lock); }).join();
}

TEST(PhaseFairLock, AWriterThatNeverRestsLeavesReadersTheirTurn) {
  PhaseFairLock lock;
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    while (!stop) std::lock_guard writing(lock);
  });
  for (int n = 0; n < 500; ++n) std::shared_lock reading(lock);
  stop = true;
  writer.join();
}

}  // namespace
}  // namespace scalelab::db
