#include "analysis/parallel.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <latch>
#include <new>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "analysis/curve.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "tests/unit/analysis/fixture.h"

namespace scalelab::analysis {
namespace {

TEST(Parallel, CallsWithEachNumberOnce) {
  for (const size_t threads : {0, 1, 4}) {
    for (const size_t count : {0, 1, 3, 1000}) {
      std::vector<std::atomic<int>> calls(count);
      ForEachInParallel(count, threads, [&](size_t i) { ++calls[i]; });
      EXPECT_TRUE(std::ranges::all_of(calls, [](const std::atomic<int>& of) { return of == 1; }))
          << threads << " threads, " << count << " numbers";
    }
  }
}

TEST(Parallel, TwoThreadsWorkAtTheSameTime) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "needs two processors";
  std::latch both(2);
  ForEachInParallel(2, 2, [&](size_t) { both.arrive_and_wait(); });  // ends only if each has a thread
}

TEST(Parallel, ACurveDoesNotDependOnTheThreads) {
  Results results;
  constexpr int kEngines = 40, kRepeats = 64;  // so many repeats are resampled
  for (int engine = 0; engine < kEngines; ++engine) {
    for (int ranks = 1; ranks <= 8; ranks *= 2) {
      results.Cell(ranks, absl::StrCat("{\"engine\":\"engine", engine, "\"}"));
      for (int repeat = 0; repeat < kRepeats; ++repeat) {
        db::RunTimes times;
        times.ranks.assign(static_cast<size_t>(ranks), {1, 0.1 + 0.01 * std::sin(repeat), 0.1});
        results.Ok({100 * ranks * (1 + 0.05 * std::sin(7.0 * repeat + 3.0 * engine + ranks))}).Times(times);
      }
    }
  }
  CurveOptions options;
  options.threads = 1;
  const auto one = results.Explained(true, options);
  ASSERT_EQ(one.series_size(), kEngines);
  options.threads = 4;
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(results.Explained(true, options), one));
}

TEST(Parallel, AnExceptionOfAnyThreadIsThrown) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "needs two processors";
  for (const bool on_caller : {true, false}) {
    const std::thread::id caller = std::this_thread::get_id();
    std::latch both(2);
    const auto work = [&](size_t) {
      both.arrive_and_wait();
      if ((std::this_thread::get_id() == caller) == on_caller) throw std::bad_alloc();
    };
    EXPECT_THROW(ForEachInParallel(2, 2, work), std::bad_alloc);
  }
}

}  // namespace
}  // namespace scalelab::analysis
