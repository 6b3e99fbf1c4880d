#include "worker/noise/calibration.h"

#include <gtest/gtest.h>

#include "tests/fakes/busy_neighbours.h"
#include "tests/unit/worker/no_threads.h"
#include "worker/node_info.h"
#include "worker/noise/attempt_meter.h"
#include "worker/noise/calibrator.h"
#include "worker/noise/node_all_reduce.h"
#include "worker/process/steady_time.h"

namespace scalelab::worker {
namespace {

TEST(Calibration, TakesItsTimeAndMeasuresRates) {
  const std::atomic<bool> stop = false;
  const absl::Duration begin = SteadyNow();
  const v1::Calibration calibration = Calibrate(absl::Milliseconds(100), AllowedCpus(), stop);
  EXPECT_GE(SteadyNow() - begin, absl::Milliseconds(95));
  EXPECT_GT(calibration.compute_rate(), 1);   // million iterations in a second
  EXPECT_GT(calibration.memory_rate(), 1e7);  // bytes in a second
  EXPECT_GT(calibration.time().seconds(), 0);
  EXPECT_EQ(calibration.has_all_reduce_rate(), AllowedCpus().size() > 1);
  ASSERT_TRUE(calibration.has_other_load());
  EXPECT_LE(calibration.other_load(), 1);
}

TEST(Calibration, OneCpuReducesNothing) {
  const std::atomic<bool> stop = false;
  EXPECT_FALSE(Calibrate(absl::Milliseconds(10), {AllowedCpus().front()}, stop).has_all_reduce_rate());
}

TEST(NodeAllReduce, TakesItsTimeAndMeasuresARate) {
  const std::atomic<bool> stop = false;
  const absl::Duration begin = SteadyNow();
  const auto rate = NodeAllReduceRate(absl::Milliseconds(50), stop);
  EXPECT_GE(SteadyNow() - begin, absl::Milliseconds(50));
  ASSERT_TRUE(rate.has_value());
  EXPECT_GT(*rate, 1e6);
}

TEST(NodeAllReduce, MeasuresNothingWithoutAThread) {
  const std::atomic<bool> stop = false;
  {
    const NoThreads no_threads;
    EXPECT_EQ(NodeAllReduceRate(absl::Milliseconds(50), stop), std::nullopt);
  }
  EXPECT_NE(NodeAllReduceRate(absl::Milliseconds(50), stop), std::nullopt);
}

TEST(NodeAllReduce, EndsEarlyWhenItIsStopped) {
  const std::atomic<bool> stop = true;
  const absl::Duration begin = SteadyNow();
  NodeAllReduceRate(absl::Seconds(60), stop);
  EXPECT_LT(SteadyNow() - begin, absl::Seconds(30));
}

TEST(Calibration, EndsEarlyWhenItIsStopped) {
  const std::atomic<bool> stop = true;
  const absl::Duration begin = SteadyNow();
  Calibrate(absl::Seconds(60), AllowedCpus(), stop);
  EXPECT_LT(SteadyNow() - begin, absl::Seconds(30));
}

TEST(Calibration, ABusyNeighbourOnEachCpuIsOtherLoad) {
  const std::atomic<bool> stop = false;
  const std::vector<int> cpus = AllowedCpus();
  const BusyNeighbours neighbours(2 * cpus.size());
  const v1::Calibration calibration = Calibrate(absl::Milliseconds(1000), cpus, stop);
  EXPECT_GT(calibration.other_load(), 0.3);
  if (calibration.has_cpu_pressure()) {
    EXPECT_GT(calibration.cpu_pressure(), 0.3);
  }
}

TEST(AttemptMeter, ABusyNeighbourIsOtherLoadDuringTheAttempt) {
  AttemptMeter meter;
  v1::NodeNoise noise;
  meter.Start(AllowedCpus(), [] { return OwnCpuSeconds(getpid()); });
  {
    // The CPU time of a child process counts as that of this process only after it has ended.
    const BusyNeighbours neighbours(AllowedCpus().size());
    absl::SleepFor(absl::Milliseconds(1500));
    meter.Finish(&noise);
  }
  EXPECT_GT(noise.other_load(), 0.5);
}

TEST(Calibrator, CallsBackOnTheLoopAndKeepsTheLastCalibration) {
  EventLoop loop;
  Calibrator calibrator(loop, AllowedCpus());
  EXPECT_TRUE(calibrator.Stale(absl::Hours(1)));
  bool done = false;
  calibrator.Start(absl::Milliseconds(10), [&] { done = true; });
  EXPECT_TRUE(calibrator.running());
  EXPECT_TRUE(loop.RunUntil([&] { return done; }, absl::Seconds(30)));
  EXPECT_FALSE(calibrator.running());
  EXPECT_TRUE(calibrator.last().has_value());
  EXPECT_FALSE(calibrator.Stale(absl::Hours(1)));
}

TEST(Calibrator, WorksWithoutAThread) {
  EventLoop loop;
  Calibrator calibrator(loop, AllowedCpus());
  bool done = false;
  {
    const NoThreads no_threads;
    calibrator.Start(absl::Milliseconds(50), [&] { done = true; });
  }
  EXPECT_TRUE(calibrator.running());
  EXPECT_TRUE(loop.RunUntil([&] { return done; }, absl::Seconds(30)));
  EXPECT_FALSE(calibrator.running());
  ASSERT_TRUE(calibrator.last().has_value());
  EXPECT_GT(calibrator.last()->compute_rate(), 0);
}

TEST(Calibrator, CanBeDestroyedWhileItRuns) {
  EventLoop loop;
  bool done = false;
  {
    Calibrator calibrator(loop, AllowedCpus());
    calibrator.Start(absl::Seconds(60), [&] { done = true; });
  }
  loop.RunUntil([] { return false; }, absl::Milliseconds(1));
  EXPECT_FALSE(done);
}

}  // namespace
}  // namespace scalelab::worker
