// Tests predictions of emulated studies whose larger sizes are known. `scalelab-bench predict` prints
// the same figures.
#include <chrono>
#include <map>
#include <random>

#include "gtest/gtest.h"
#include "tests/bench/emulation/moving_cluster.h"
#include "tests/bench/emulation/recorded_steps.h"
#include "tests/bench/predict_bench.h"

namespace scalelab::bench {
namespace {

TEST(EmulatedStudies, HaveSmallErrorsAndIntervalsOfAboutNinetyPercent) {
  std::map<std::string, double> values;
  for (const Figure& figure : RunSimulatedBench({})) values[figure.name] = figure.value;
  for (const std::string kind : {"predict/with times of ranks", "predict/from throughputs"}) {
    ASSERT_TRUE(values.contains(kind + "/coverage"));
    EXPECT_LE(values[kind + "/median error"], 10) << kind;
    EXPECT_GE(values[kind + "/coverage"], 85) << kind;
    EXPECT_LE(values[kind + "/coverage"], 95) << kind;
  }
  EXPECT_LT(values["predict/with times of ranks/median error"],
            values["predict/from throughputs/median error"])
      << "the model of the step helps";
}

std::map<std::string, double> MovedBytes(double scale) {
  std::map<std::string, double> values;
  BenchOptions options;
  options.scale = scale;
  for (const Figure& figure : RunMovingBench(options)) values[figure.name] = figure.value;
  return values;
}

// The all-reduces of the emulation check their sums themselves.
TEST(EmulatedStudies, RanksThatMoveBytesArePredictedFromTheirBuckets) {
  auto values = MovedBytes(0.05);
  const std::string kind = "predict/moved bytes, with buckets";
  ASSERT_TRUE(values.contains(kind + "/coverage"));
  EXPECT_LE(values[kind + "/median error"], 10);
  EXPECT_GE(values[kind + "/coverage"], 75) << "12 studies";
}

// 220 studies; the scores of the first 20 only correct the intervals of the others. Of 200 independent
// intervals that are each right with a probability of 90%, 85% to 95% are right with a probability of 98.7%.
// The seed is that of the tables.
TEST(EmulatedStudies, RanksWithRecordedStepsArePredictedAndNinetyPercentOfTheIntervalsAreRight) {
  std::map<std::string, double> values;
  for (const Figure& figure : RunRecordedBench({})) values[figure.name] = figure.value;
  const std::string kind = "predict/recorded steps, with buckets";
  ASSERT_TRUE(values.contains(kind + "/corrected/coverage"));
  EXPECT_LE(values[kind + "/median error"], 10);
  EXPECT_LE(values[kind + "/corrected/median error"], 10);
  EXPECT_GE(values[kind + "/coverage"], 85);
  EXPECT_GE(values[kind + "/corrected/coverage"], 85);
  EXPECT_LE(values[kind + "/corrected/coverage"], 95);
}

TEST(EmulatedStudies, ARankTakesTheRecordedStepsInTheirOrder) {
  EmulatedConfiguration c;
  c.batch = 10;
  c.seconds_per_sample = 0.1;
  c.buckets.push_back({1, 1e6});
  c.steps.push_back({2, 0.25});
  std::mt19937_64 random(1);
  const EmulatedRun run = RunMoving(c, {}, 1, 1, random);
  EXPECT_NEAR(run.throughput, 10 / 2.0, 1e-9);
  EXPECT_NEAR(run.recorded.backward, 1.5, 1e-9);
  c.steps = {{1, 0.5}, {3, 0.5}};
  EXPECT_NEAR(RunMoving(c, {}, 1, 1, random).parts.compute, 2, 1e-9) << "the mean of the two";
}

TEST(EmulatedStudies, RecordedStepsKeepTheShareOfCommunication) {
  EmulatedConfiguration c;
  c.seconds_per_sample = 0.1;
  c.seconds_per_step = 0.2;
  c.buckets = {{0.5, 1e6}, {1, 3e6}};
  c.within = c.between = {1e-3, 1e-6};
  const RecordedSteps recorded{"resnet8", 10, {{1, 2e6}}, {{0.5, 1.5}, {1, 3}, {0.25, 0.75}}};
  std::mt19937_64 random(1);
  UseRecordedSteps({recorded}, random, c);
  // The usual step of 10 samples takes 2 s, so computation is twice as slow as before.
  EXPECT_DOUBLE_EQ(c.seconds_per_sample, 0.2);
  EXPECT_DOUBLE_EQ(c.seconds_per_step, 0.4);
  EXPECT_DOUBLE_EQ(c.between.seconds_per_byte, 1e-6 * 2 * 4 / 2) << "half the bytes take twice the time";
  EXPECT_DOUBLE_EQ(c.between.latency, 1e-3 * 2 * 2) << "half the messages take twice the time";
  ASSERT_EQ(c.steps.size(), 3u);
  EXPECT_DOUBLE_EQ(c.steps[1].relative, 2);
  EXPECT_DOUBLE_EQ(c.steps[1].forward, 0.25);
}

// How much slower depends on the machine, so it is not tested.
TEST(EmulatedStudies, InRealTimeRanksReallyWaitAndAreNotFaster) {
  EmulatedConfiguration c;
  c.batch = 64;
  c.ranks_per_node = 4;
  c.seconds_per_sample = 1e-3;
  c.buckets = {{0.5, 1e6}, {1, 4e6}};
  c.within = c.between = {1e-5, 1e-9};
  std::mt19937_64 random(1);
  const double ideal = RunMoving(c, {}, 4, 1, random).throughput;
  const auto begin = std::chrono::steady_clock::now();
  const double real = RunMoving(c, {}, 4, 1, random, 2).throughput;
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(60));
  EXPECT_LE(real, ideal * (1 + 1e-6));
  EXPECT_GT(real, 0);
}

TEST(EmulatedStudies, VirtualTimeGivesTheSameFiguresAgain) { EXPECT_EQ(MovedBytes(0.01), MovedBytes(0.01)); }

}  // namespace
}  // namespace scalelab::bench
