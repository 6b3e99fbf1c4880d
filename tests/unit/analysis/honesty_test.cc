// Tests of the notes with which a curve reports its own weaknesses.
#include <cmath>
#include <limits>

#include "analysis/outliers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/analysis/fixture.h"

namespace scalelab::analysis {
namespace {

using db::RunState;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Values of older databases, which the coordinator did not check.
TEST(Honesty, NIsTheNumberOfValuesThatAreUsed) {
  Results results;
  results.Cell(1).Ok({100, kNan, kNan, kNan, kNan}).Cell(2).Ok({190, 191, 192}).Other(RunState::kFailed);
  results.Other(RunState::kCancelled);
  const auto curve = results.Curve();
  const auto& one = curve.series(0).points(0);
  EXPECT_EQ(one.n(), 1);
  EXPECT_EQ(one.asked(), 5);
  EXPECT_DOUBLE_EQ(one.throughput().mean(), 100);
  EXPECT_THAT(one.notes(), Contains(AllOf(HasSubstr("4 runs without a usable throughput"),
                                          HasSubstr("run/throughput is not a number"))));
  EXPECT_EQ(curve.series(0).points(1).n(), 3);
  EXPECT_EQ(curve.series(0).points(1).asked(), 5);
}

TEST(Honesty, ImpossibleValuesAreNotAveraged) {
  for (const double wrong : {-100.0, 0.0, 1e300, HUGE_VAL, kNan}) {
    SCOPED_TRACE(wrong);
    Results results;
    results.Cell(1).Ok({100, 101, 102}).Cell(2).Ok({200, wrong, 202});
    results.last_row().comm_share = 1.7;
    results.last_row().peak_memory = -1e9;
    const auto curve = results.Curve();
    const auto& two = curve.series(0).points(1);
    EXPECT_EQ(two.n(), 2);
    EXPECT_DOUBLE_EQ(two.throughput().mean(), 201);
    EXPECT_NEAR(two.speedup().mean(), 2, 0.02);
    EXPECT_LT(two.speedup().high(), 2.5);
    EXPECT_FALSE(two.has_comm_share());
    EXPECT_FALSE(two.has_peak_memory());
    EXPECT_THAT(two.notes(), Contains(HasSubstr("run/comm_share is 1.7, which is above 1")));
  }
}

TEST(Honesty, ReasonsOfTheCoordinatorAreShown) {
  Results results;
  results.Cell(1).Ok({100, 101});
  results.last_row().message = "run/accuracy of rank 0 is 3, which is above 1; the value is not used";
  EXPECT_THAT(results.Curve().series(0).points(0).notes(),
              Contains(HasSubstr("run/accuracy of rank 0 is 3")));
}

// The baseline lacks blocks 0 and 1, the cell lacks blocks 2 and 3, and blocks 0 and 1 ran at half speed.
TEST(Honesty, CellsOfOtherBlocksAreComparedThroughTheOthers) {
  Results results;
  results.Cell(1).Other(RunState::kFailed).Other(RunState::kFailed).Ok({100, 100.4});
  results.Cell(2).Ok({99, 99.3, 198.5, 198});
  results.Cell(8).Ok({296, 297}).Other(RunState::kFailed).Other(RunState::kFailed);
  const auto curve = results.Curve();
  const auto& eight = curve.series(0).points(2);
  EXPECT_NEAR(eight.speedup().mean(), 5.93, 0.03);
  EXPECT_THAT(eight.notes(), Contains(HasSubstr("shares no repeat with the base case")));
  EXPECT_THAT(curve.series(0).points(1).notes(), Contains(HasSubstr("shares only 2 of its 4 repeats")));
}

TEST(Honesty, CellsThatNothingConnectsHaveNoRatio) {
  Results results;
  results.Cell(1).Other(RunState::kFailed).Ok({100}).Cell(2).Ok({99}).Other(RunState::kFailed);
  const auto curve = results.Curve();
  EXPECT_FALSE(curve.series(0).points(1).has_speedup());
  EXPECT_THAT(curve.series(0).points(1).notes(), Contains(HasSubstr("no speedup: it shares no repeat")));
}

TEST(Honesty, RepeatedRunsAreCounted) {
  Results results;
  results.Cell(1).Ok({100, 101});
  results.last_row().attempts = 3;
  const auto curve = results.Curve();
  EXPECT_EQ(curve.series(0).points(0).retried(), 1);
  EXPECT_THAT(curve.series(0).points(0).notes(), Contains("1 run succeeded only after a failed attempt"));
}

TEST(Honesty, NoisyContinuedAndCancelledAttemptsAreNotFailedOnes) {
  Results results;
  results.Cell(1).Ok({100, 101, 99, 100.5});
  const auto add = [&](double throughput, int attempts) -> db::CurveRow& {
    results.Ok({throughput}).last_row().attempts = attempts;
    return results.last_row();
  };
  add(100.3, 2).noisy_attempts = 1;
  add(99.6, 3).noisy_attempts = 2;
  add(100.7, 4).continued_attempts = 3;
  add(99.3, 2).cancelled_attempts = 1;
  const auto curve = results.Curve();
  const auto& point = curve.series(0).points(0);
  EXPECT_EQ(point.retried(), 0);
  EXPECT_EQ(point.rerun(), 2);
  EXPECT_EQ(point.continued(), 1);
  EXPECT_THAT(
      point.notes(),
      AllOf(Contains("2 runs were repeated because 3 attempts were disturbed by other load on the nodes; "
                     "`scalelab run show` has their throughput"),
            Contains("1 run continued from a checkpoint after a time limit or a preemption"),
            Not(Contains(HasSubstr("failed attempt")))));
  add(100.1, 3).noisy_attempts = 1;  // the other one failed
  const auto more = results.Curve();
  EXPECT_EQ(more.series(0).points(0).retried(), 1);
  EXPECT_EQ(more.series(0).points(0).rerun(), 3);
  EXPECT_THAT(more.series(0).points(0).notes(), Contains("1 run succeeded only after a failed attempt"));
}

TEST(Honesty, OutliersAreNamedAndKept) {
  Results results;
  results.Cell(1).Ok({100, 101, 99.5, 100.5, 100}).Cell(2).Ok({200, 201, 140, 199, 200.5});
  results.Cell(4).Ok({390, 391, 388, 392, 390});
  const auto curve = results.Curve();
  EXPECT_EQ(curve.series(0).points(1).n(), 5);
  EXPECT_THAT(curve.series(0).points(1).notes(),
              Contains(AllOf(HasSubstr("outlier: repeat 2 is"), HasSubstr("slower"))));
  EXPECT_THAT(curve.series(0).points(2).notes(), IsEmpty());
}

TEST(Honesty, TheRuleOfOutliersByHand) {
  // The logarithms deviate from the means of three cells by
  //   -0.01  0     0     0.01
  //    0     0.01 -0.01  0
  //    0.01  0     0     x
  // in four blocks. With x < 0 the medians of all cells and blocks are 0, so these are the residuals. The sizes are six zeros,
  // five times 0.01 and |x|. There are 12 - 3 - 4 + 1 = 6 degrees of freedom, so six zeros are not counted; the median of the
  // other six is 0.01. The limit is 5 x 1.4826 x 0.01 = 0.07413.
  const auto outliers = [](double x) {
    const std::vector<std::vector<double>> deviations = {
        {-0.01, 0, 0, 0.01}, {0, 0.01, -0.01, 0}, {0.01, 0, 0, x}};
    std::vector<Sample> samples(3);
    std::vector<const Sample*> cells;
    for (size_t c = 0; c < samples.size(); ++c) {
      for (int block = 0; block < 4; ++block) {
        samples[c].block.push_back(block);
        samples[c].value.push_back(100 * static_cast<double>(c + 1) *
                                   std::exp(deviations[c][static_cast<size_t>(block)]));
      }
      cells.push_back(&samples[c]);
    }
    return FindOutliers(cells, 4);
  };
  for (const auto& of_cell : outliers(-0.0741)) EXPECT_TRUE(of_cell.empty());
  const auto found = outliers(-0.0742);
  EXPECT_TRUE(found[0].empty());
  EXPECT_TRUE(found[1].empty());
  ASSERT_EQ(found[2].size(), 1u);
  EXPECT_EQ(found[2][0].place, 3u);
  EXPECT_NEAR(found[2][0].residual, -0.0742, 1e-12);
}

TEST(Honesty, AnEfficiencyAboveOneIsNamed) {
  Results results;
  results.Cell(1).Ok({100, 101, 100}).Cell(2).Ok({230, 231, 229});
  EXPECT_THAT(results.Curve().series(0).points(1).notes(), Contains(HasSubstr("efficiency above 1")));
  Results usual;
  usual.Cell(1).Ok({100, 101, 100}).Cell(2).Ok({200.5, 201, 201.5});
  EXPECT_THAT(usual.Curve().series(0).points(1).notes(), IsEmpty());
}

TEST(Honesty, AnEfficiencyAboveOneIsUsualRelativeToAnotherEngine) {
  Results results(R"({"baseline":{"engine":"a","ranks":1}})");
  results.Cell(1, R"({"engine":"a"})").Ok({100, 101, 100}).Cell(2, R"({"engine":"a"})").Ok({230, 231, 229});
  results.Cell(1, R"({"engine":"b"})").Ok({150, 151, 150});
  const auto curve = results.Curve();
  EXPECT_THAT(curve.series(0).points(1).notes(), Contains(HasSubstr("efficiency above 1")));
  EXPECT_GT(curve.series(1).points(0).efficiency().low(), 1);
  EXPECT_THAT(curve.series(1).points(0).notes(), IsEmpty());
}

TEST(Honesty, ListedOrderMarksTheSpeedups) {
  Results listed(R"({"order":"LISTED"})"), randomised;
  for (Results* results : {&listed, &randomised}) results->Cell(1).Ok({100, 101}).Cell(2).Ok({190, 191});
  EXPECT_TRUE(listed.Curve().series(0).listed_order());
  EXPECT_THAT(listed.Curve().series(0).notes(), Contains(HasSubstr("in the order of the study file")));
  EXPECT_FALSE(randomised.Curve().series(0).listed_order());
  EXPECT_THAT(randomised.Curve().series(0).notes(), Each(Not(HasSubstr("order of the study file"))));
}

TEST(Honesty, RepeatsOnDifferentNodesAreNamed) {
  Results results;
  results.Cell(1).Ok({100});
  results.last_row().nodes_hash = 5;
  results.Ok({100});
  results.last_row().nodes_hash = 6;
  results.Cell(2).Ok({100});
  results.last_row().nodes_hash = 5;
  results.Ok({100});  // unknown: stored by an older version
  const auto curve = results.Curve();
  EXPECT_THAT(curve.series(0).points(0).notes(), Contains("repeats ran on different nodes"));
  EXPECT_THAT(curve.series(0).points(1).notes(), IsEmpty());
}

TEST(Honesty, AThroughputThatTheStepsDoNotHaveIsNamed) {
  Results results;
  results.Cell(1).Ok({256, 256});
  results.last_row().reported_step = 3;  // 256 samples in 3 s are 85 samples/s
  results.Cell(2).Ok({512});
  results.last_row().reported_step = 0.52;
  const auto curve = results.Curve();
  EXPECT_THAT(curve.series(0).points(0).notes(),
              Contains(AllOf(HasSubstr("repeat 1 reported 256 samples/s"), HasSubstr("median step of 3 s"))));
  EXPECT_THAT(curve.series(0).points(1).notes(), IsEmpty());
}

TEST(Honesty, TheNoiseFloorIsTheSmallestDifferenceThatCouldBeSeen) {
  const double d = 0.01;
  Results results;
  results.Cell(1)
      .Ok({100 * std::exp(d), 100 * std::exp(-d)})
      .Cell(2)
      .Ok({200 * std::exp(-d), 200 * std::exp(d)});
  const auto curve = results.Curve();
  // Residuals +-d in four values, one degree of freedom: s^2 = 4 d^2. t_.975 = 12.7062, t_.8 = 1.37638.
  EXPECT_NEAR(curve.series(0).noise_floor(), std::expm1((12.7062 + 1.37638) * std::sqrt(2 * 4 * d * d / 2)),
              1e-5);
}

TEST(Honesty, ALawThatDoesNotDescribeThePointsIsRefuted) {
  Results usl, amdahl;
  for (const int p : {1, 2, 4, 8, 16}) {
    std::vector<double> of_usl, of_amdahl;
    for (int i = 0; i < 5; ++i) {
      const double noise = 1 + 0.005 * std::sin(37.0 * i + 5 * p);
      of_usl.push_back(100 * p / (1 + 0.01 * (p - 1) + 0.01 * p * (p - 1)) * noise);
      of_amdahl.push_back(100 / (0.05 + 0.95 / p) * noise);
    }
    usl.Cell(p).Ok(of_usl);
    amdahl.Cell(p).Ok(of_amdahl);
  }
  const auto refuted = usl.Curve(), kept = amdahl.Curve();
  EXPECT_TRUE(refuted.series(0).fits(0).lack_of_fit().rejected());
  EXPECT_THAT(refuted.series(0).notes(), Contains(HasSubstr("Amdahl's law does not describe these points")));
  EXPECT_FALSE(refuted.series(0).fits(1).lack_of_fit().rejected());
  ASSERT_TRUE(kept.series(0).fits(0).has_lack_of_fit());
  EXPECT_FALSE(kept.series(0).fits(0).lack_of_fit().rejected());
  EXPECT_EQ(kept.series(0).fits(0).lack_of_fit().deviation_df(), 3);
}

}  // namespace
}  // namespace scalelab::analysis
