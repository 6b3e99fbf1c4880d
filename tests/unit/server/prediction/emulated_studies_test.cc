// Tests predictions of emulated studies whose larger sizes are known. `scalelab-bench predict` prints
// the same figures.
#include <chrono>
#include <map>
#include <random>

#include "gtest/gtest.h"
#include "tests/bench/emulation/moving_cluster.h"
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
