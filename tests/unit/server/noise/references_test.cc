#include "server/noise/references.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace scalelab::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

v1::Calibration Calibration(int64_t seconds, double compute, double memory = 1e10, double load = 0,
                            double pressure = 0) {
  v1::Calibration calibration;
  calibration.mutable_time()->set_seconds(seconds);
  calibration.set_compute_rate(compute);
  calibration.set_memory_rate(memory);
  calibration.set_other_load(load);
  calibration.set_cpu_pressure(pressure);
  return calibration;
}

v1::NodeNoise Before(const v1::Calibration& calibration, const std::string& node = "n0") {
  v1::NodeNoise noise;
  noise.set_node(node);
  *noise.mutable_before() = calibration;
  return noise;
}

// A node with ten earlier calibrations at 100 +- 1.
NoiseReferences Quiet() {
  NoiseReferences references;
  for (int i = 0; i < 10; ++i) references.Add(Before(Calibration(i, 100 + (i % 3) - 1)));
  return references;
}

TEST(Band, IsTheMedianAndFiveScaledDeviations) {
  // Median 3, absolute deviations 2 1 0 1 97: MAD 1.
  const auto band = BandOf({1, 2, 3, 4, 100}, 0);
  ASSERT_TRUE(band.has_value());
  EXPECT_DOUBLE_EQ(band->median, 3);
  EXPECT_DOUBLE_EQ(band->width, 5 * 1.4826);
}

TEST(Band, IsNotNarrowerThanItsFloor) { EXPECT_DOUBLE_EQ(BandOf({7, 7, 7, 7, 7, 7}, 0.25)->width, 0.25); }

TEST(Band, NeedsFiveValues) { EXPECT_FALSE(BandOf({1, 2, 3, 4}, 1).has_value()); }

TEST(Band, OfAnEvenNumberHasTheMeanOfTheMiddle) {
  EXPECT_DOUBLE_EQ(BandOf({4, 1, 3, 2, 9, 8}, 0)->median, 3.5);
}

TEST(LoadFloor, IsHalfACpuWithinTwoAndTwentyFivePercent) {
  EXPECT_DOUBLE_EQ(LoadFloor(0), 0.25);
  EXPECT_DOUBLE_EQ(LoadFloor(1), 0.25);
  EXPECT_DOUBLE_EQ(LoadFloor(4), 0.125);
  EXPECT_DOUBLE_EQ(LoadFloor(128), 0.02);
}

TEST(NoiseReferences, AUsualCalibrationIsNotNoisy) {
  EXPECT_THAT(Quiet().Judge(Before(Calibration(20, 97)), 4).reasons, IsEmpty());
}

TEST(NoiseReferences, ASlowCoreIsNoisy) {
  EXPECT_THAT(Quiet().Judge(Before(Calibration(20, 80)), 4).reasons,
              ElementsAre(HasSubstr("before the attempt, one core was 20% slower than usual")));
}

TEST(NoiseReferences, AFastCoreIsNotNoisy) {
  EXPECT_THAT(Quiet().Judge(Before(Calibration(20, 130)), 4).reasons, IsEmpty());
}

TEST(NoiseReferences, SlowMemoryAfterTheAttemptIsNoisy) {
  v1::NodeNoise noise;
  noise.set_node("n0");
  *noise.mutable_after() = Calibration(20, 100, 0.7e10);
  EXPECT_THAT(Quiet().Judge(noise, 4).reasons,
              ElementsAre(HasSubstr("after the attempt, memory was 30% slower")));
}

TEST(NoiseReferences, RatesOfANodeWithoutAReferenceAreNotJudged) {
  EXPECT_THAT(NoiseReferences().Judge(Before(Calibration(20, 1)), 4).reasons, IsEmpty());
  EXPECT_THAT(Quiet().Judge(Before(Calibration(20, 1), "another"), 4).reasons, IsEmpty());
}

TEST(NoiseReferences, OtherProcessesAreNoisyWithoutAReference) {
  EXPECT_THAT(NoiseReferences().Judge(Before(Calibration(20, 100, 1e10, 0.5)), 2).reasons,
              ElementsAre(HasSubstr("other processes used the CPUs 50% of the time (up to 25% is normal)")));
}

TEST(NoiseReferences, ANodeThatIsAlwaysBusyIsJudgedByItsOwnBand) {
  NoiseReferences references;
  for (int i = 0; i < 10; ++i) references.Add(Before(Calibration(i, 100, 1e10, 0.4 + 0.01 * (i % 2))));
  EXPECT_THAT(references.Judge(Before(Calibration(20, 100, 1e10, 0.42)), 4).reasons, IsEmpty());
  EXPECT_THAT(references.Judge(Before(Calibration(20, 100, 1e10, 0.9)), 4).reasons,
              ElementsAre(HasSubstr("90%")));
}

TEST(NoiseReferences, LoadStealAndHeatDuringTheAttemptAreNoisy) {
  v1::NodeNoise noise;
  noise.set_node("n0");
  noise.set_other_load(0.3);
  noise.set_steal(0.1);
  noise.set_throttle_events(7);
  EXPECT_THAT(NoiseReferences().Judge(noise, 8).reasons,
              ElementsAre(HasSubstr("other processes used 30%"), HasSubstr("the hypervisor took 10%"),
                          HasSubstr("because of heat 7 times")));
}

TEST(NoiseReferences, ASlowAllReduceOnTheNodeIsNoisy) {
  NoiseReferences references = Quiet();  // calibrations of workers that do not measure it
  const auto with = [](int64_t seconds, double rate) {
    v1::Calibration calibration = Calibration(seconds, 100);
    calibration.set_all_reduce_rate(rate);
    return Before(calibration);
  };
  EXPECT_THAT(references.Judge(with(20, 1), 4).reasons, IsEmpty()) << "nothing to compare with";
  for (int i = 0; i < 8; ++i) references.Add(with(20 + i, 2e9 + 1e7 * (i % 3)));
  EXPECT_THAT(references.Judge(with(40, 1.7e9), 4).reasons, IsEmpty());
  EXPECT_THAT(
      references.Judge(with(40, 1e9), 4).reasons,
      ElementsAre("before the attempt, an all-reduce on the node was 50% slower than usual (up to 20% is "
                  "normal)"));
}

TEST(NoiseReferences, TheSeverityIsTheLargestDeviation) {
  // The median is 100 and MAD is 1, so a deviation of 7.413 is normal.
  EXPECT_NEAR(Quiet().Judge(Before(Calibration(20, 80)), 4).severity, 20 / (5 * 1.4826), 1e-9);
  v1::NodeNoise noise = Before(Calibration(20, 80));
  noise.set_other_load(0.9);
  EXPECT_NEAR(Quiet().Judge(noise, 2).severity, 0.9 / 0.25, 1e-9);
  EXPECT_EQ(Quiet().Judge(Before(Calibration(20, 97)), 4).severity, 0);
}

TEST(NoiseReferences, ACalibrationThatSeveralAttemptsShareCountsOnce) {
  NoiseReferences references;
  for (int i = 0; i < 10; ++i) references.Add(Before(Calibration(1, 100)));
  EXPECT_THAT(references.Judge(Before(Calibration(20, 50)), 4).reasons, IsEmpty())
      << "one value makes no band";
}

TEST(NoiseReferences, ACalibrationIsComparedWithEarlierOnesOnly) {
  NoiseReferences references = Quiet();
  for (int i = 30; i < 60; ++i) references.Add(Before(Calibration(i, 50)));
  EXPECT_THAT(references.Judge(Before(Calibration(70, 50)), 4).reasons, IsEmpty())
      << "the node has become slower";
}

}  // namespace
}  // namespace scalelab::server
