#include "analysis/factors/time_to_target.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/analysis/fixture.h"

namespace scalelab::analysis {
namespace {

using ::testing::HasSubstr;

TEST(TimeToTarget, TheFastestAndTheSlowestRepeatAreLeftOut) {
  const auto result = MakeTimeToTarget({{100.0, {}}, {130.0, {}}, {90.0, {}}, {400.0, {}}, {110.0, {}}});
  EXPECT_EQ(result.n(), 5);
  EXPECT_EQ(result.reached(), 5);
  EXPECT_DOUBLE_EQ(result.seconds(), (100.0 + 110 + 130) / 3);
  EXPECT_FALSE(result.has_samples());
  EXPECT_EQ(result.note(), "");
}

TEST(TimeToTarget, OneRepeatThatDidNotReachTheTargetIsTheSlowest) {
  const auto result = MakeTimeToTarget({{100.0, 1000.0}, {{}, {}}, {90.0, 900.0}, {110.0, 1200.0}});
  EXPECT_EQ(result.reached(), 3);
  EXPECT_EQ(result.n(), 4);
  EXPECT_DOUBLE_EQ(result.seconds(), 105);
  EXPECT_DOUBLE_EQ(result.samples(), 1100);
}

TEST(TimeToTarget, TwoThatDidNotReachItLeaveNoTime) {
  const auto result = MakeTimeToTarget({{100.0, {}}, {{}, {}}, {90.0, {}}, {{}, {}}});
  EXPECT_EQ(result.reached(), 2);
  EXPECT_FALSE(result.has_seconds());
  EXPECT_EQ(result.note(), "2 of 4 repeats did not reach the target; only one may be left out");
}

TEST(TimeToTarget, TwoRepeatsAreTooFew) {
  const auto result = MakeTimeToTarget({{100.0, {}}, {90.0, {}}});
  EXPECT_FALSE(result.has_seconds());
  EXPECT_THAT(result.note(), HasSubstr("at least 3 repeats, and 2 succeeded"));
}

TEST(TimeToTarget, ALargerBatchThatConvergesFasterIsSuspicious) {
  auto base = MakeTimeToTarget({{1.0, 1000.0}, {1.0, 1000.0}, {1.0, 1000.0}});
  auto slower = MakeTimeToTarget({{1.0, 1200.0}, {1.0, 1200.0}, {1.0, 1200.0}});
  auto faster = MakeTimeToTarget({{1.0, 500.0}, {1.0, 500.0}, {1.0, 500.0}});
  CompareConvergence(base, slower);
  CompareConvergence(base, faster);
  EXPECT_DOUBLE_EQ(slower.samples_ratio(), 1.2);
  EXPECT_EQ(slower.note(), "");
  EXPECT_DOUBLE_EQ(faster.samples_ratio(), 0.5);
  EXPECT_THAT(faster.note(), HasSubstr("0.5 times the samples of the base case"));
}

TEST(TimeToTarget, ACurveCountsRepeatsWithATargetOnly) {
  Results results;
  results.Engine("native/ddp", 1, ",\"target_accuracy\":0.9").Ok({100, 100, 100, 100});
  results.last_row().time_to_accuracy = 12;
  results.Engine("native/ddp", 2).Ok({190});
  results.Engine("native/ddp", 4, ",\"target_accuracy\":0.9");
  for (const double seconds : {3.0, 5.0}) results.Ok({380}).last_row().time_to_accuracy = seconds;
  for (const bool factors : {false, true}) {
    const auto curve = results.Explained(factors);
    EXPECT_EQ(curve.series(0).points(0).time_to_target().reached(), 1);
    EXPECT_EQ(curve.series(0).points(0).time_to_target().n(), 4);
    EXPECT_FALSE(curve.series(0).points(0).has_time_to_accuracy()) << "one of four is no mean of the repeats";
    EXPECT_FALSE(curve.series(0).points(1).has_time_to_target());
    EXPECT_DOUBLE_EQ(curve.series(0).points(2).time_to_accuracy().mean(), 4);
  }
}

}  // namespace
}  // namespace scalelab::analysis
