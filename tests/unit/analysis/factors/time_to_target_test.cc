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
  CompareConvergence(base, 256, 512, slower);
  CompareConvergence(base, 256, 512, faster);
  EXPECT_DOUBLE_EQ(slower.samples_ratio(), 1.2);
  EXPECT_EQ(slower.note(), "");
  EXPECT_DOUBLE_EQ(faster.samples_ratio(), 0.5);
  EXPECT_THAT(faster.note(), HasSubstr("0.5 times the samples of the base case"));
}

TEST(TimeToTarget, ASmallerBatchMayNeedFewerSamples) {
  const auto base = MakeTimeToTarget({{1.0, 1000.0}, {1.0, 1000.0}, {1.0, 1000.0}});
  const auto faster = MakeTimeToTarget({{1.0, 500.0}, {1.0, 500.0}, {1.0, 500.0}});
  auto smaller = faster, equal = faster;
  CompareConvergence(base, 256, 128, smaller);
  CompareConvergence(base, 256, 256, equal);
  EXPECT_DOUBLE_EQ(smaller.samples_ratio(), 0.5);
  EXPECT_EQ(smaller.note(), "");
  EXPECT_DOUBLE_EQ(equal.samples_ratio(), 0.5);
  EXPECT_THAT(equal.note(), HasSubstr("0.5 times the samples of the base case"));
}

// With weak scaling the batch grows with the ranks, so fewer ranks than the base case have a smaller batch.
TEST(TimeToTarget, ACurveComparesTheBatchesOfThePointAndTheBaseCase) {
  Results results(R"({"baseline":{"ranks":2}})");
  for (const int ranks : {1, 2, 4}) {
    results.Engine("native/ddp", ranks, ",\"target_accuracy\":0.9").GlobalBatch(128 * ranks);
    for (int repeat = 0; repeat < 3; ++repeat) {
      results.Ok({100}).last_row().time_to_accuracy = 10;
      db::RunTimes times;
      times.ranks.assign(static_cast<size_t>(ranks), {1, 0, 0});
      times.samples_to_accuracy = ranks == 2 ? 1000 : 500;
      results.Times(times);
    }
  }
  const auto curve = results.Explained();
  EXPECT_DOUBLE_EQ(curve.series(0).points(0).time_to_target().samples_ratio(), 0.5);
  EXPECT_EQ(curve.series(0).points(0).time_to_target().note(), "");
  EXPECT_DOUBLE_EQ(curve.series(0).points(2).time_to_target().samples_ratio(), 0.5);
  EXPECT_THAT(curve.series(0).points(2).time_to_target().note(), HasSubstr("of the base case"));
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
