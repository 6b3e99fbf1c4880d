#include "worker/noise/counters.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "worker/node_info.h"
#include "worker/noise/attempt_meter.h"

namespace scalelab::worker {
namespace {

constexpr char kStat[] =
    "cpu  900 90 90 9000 90 9 9 9 0 0\n"
    "cpu0 100 10 20 1000 30 4 6 5 50 0\n"
    "cpu1 200 0 0 500 0 0 0 10 0 0\n"
    "cpu10 7 0 0 0 0 0 0 0 0 0\n"
    "intr 1 2 3\n";

TEST(CpuTimes, AreSummedOverTheCpusThatTheWorkerMayUse) {
  const auto times = ParseCpuTimes(kStat, {0, 1}, 100);
  ASSERT_TRUE(times.has_value());
  EXPECT_DOUBLE_EQ(times->busy, 1.4 + 2.0) << "user, nice, system and interrupts; guests are part of user";
  EXPECT_DOUBLE_EQ(times->idle, 10.3 + 5.0) << "idle and waiting for I/O";
  EXPECT_DOUBLE_EQ(times->steal, 0.15);
  EXPECT_DOUBLE_EQ(ParseCpuTimes(kStat, {10}, 100)->busy, 0.07);
}

TEST(CpuTimes, AreAbsentWithoutOneOfTheCpus) {
  EXPECT_FALSE(ParseCpuTimes(kStat, {0, 2}, 100).has_value());
  EXPECT_FALSE(ParseCpuTimes(kStat, {}, 100).has_value());
  EXPECT_FALSE(ParseCpuTimes("", {0}, 100).has_value());
}

TEST(Pressure, IsTheTotalOfSome) {
  EXPECT_DOUBLE_EQ(*ParsePressure("some avg10=0.33 avg60=1.66 avg300=5.06 total=2500000\nfull total=7\n"),
                   2.5);
  EXPECT_FALSE(ParsePressure("").has_value());
  EXPECT_FALSE(ParsePressure("full avg10=0 total=7\n").has_value());
}

TEST(ProcessTimes, ANameMayContainSpacesAndParentheses) {
  const auto times = ParseProcessTimes("42 (a ) b (c) S 1 2 3 4 5 6 7 8 9 10 100 20 3 4 20 0 1 0 99", 100);
  ASSERT_TRUE(times.has_value());
  EXPECT_DOUBLE_EQ(*times, 1.27);
  EXPECT_FALSE(ParseProcessTimes("42 (short) S 1 2", 100).has_value());
}

TEST(Counters, OfThisMachineCanBeRead) {
  const Counters counters = ReadCounters(AllowedCpus());
  ASSERT_TRUE(counters.cpu.has_value());
  EXPECT_GT(counters.cpu->total(), 0);
  EXPECT_GT(OwnCpuSeconds(getpid()).value_or(-1), 0);
}

NodeUse Use(double seconds, double busy, double own) {
  NodeUse use;
  use.seconds = seconds;
  use.before.cpu = CpuTimes{10, 10, 1};
  use.after.cpu = CpuTimes{10 + busy, 10 + 2 * seconds - busy - 0.1 * seconds, 1 + 0.1 * seconds};
  use.own_before = 3;
  use.own_after = 3 + own;
  return use;
}

TEST(NodeUse, OtherLoadIsTheBusyTimeWithoutTheAttemptsOwn) {
  v1::NodeNoise noise;
  SetUse(Use(10, 14, 9), &noise);
  EXPECT_DOUBLE_EQ(noise.other_load(), 0.25) << "5 of 20 CPU seconds";
  EXPECT_DOUBLE_EQ(noise.steal(), 0.05);
  EXPECT_FALSE(noise.has_throttle_events());
}

TEST(NodeUse, OfAShortAttemptHasNoShares) {
  v1::NodeNoise noise;
  NodeUse use = Use(0.5, 0.5, 0.1);
  use.before.throttle = 5, use.after.throttle = 7;
  SetUse(use, &noise);
  EXPECT_FALSE(noise.has_other_load());
  EXPECT_FALSE(noise.has_steal());
  EXPECT_EQ(noise.throttle_events(), 2);
}

TEST(NodeUse, WithoutTheAttemptsOwnTimeOtherLoadIsUnknown) {
  v1::NodeNoise noise;
  NodeUse use = Use(10, 14, 9);
  use.own_after.reset();
  SetUse(use, &noise);
  EXPECT_FALSE(noise.has_other_load());
  EXPECT_TRUE(noise.has_steal());
}

TEST(NodeUse, CountersThatDisagreeDoNotGiveALoadBelowZero) {
  v1::NodeNoise noise;
  SetUse(Use(10, 4, 5), &noise);
  EXPECT_EQ(noise.other_load(), 0);
}

}  // namespace
}  // namespace scalelab::worker
