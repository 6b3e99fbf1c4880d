#include "analysis/precision.h"

#include <algorithm>
#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/analysis/fixture.h"

namespace scalelab::analysis {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

Results Adaptive(int min) {
  Results results;
  results.spec().mutable_adaptive_repeats()->set_min(min);
  return results;
}

TEST(Precision, IntervalsOfPairsByHand) {
  // docs/users/reading-a-curve-statistics.md has this example.
  Results results = Adaptive(3);
  results.Cell(1).Ok({100, 200, 50}).Cell(2).Ok({190, 384, 95.5});
  const auto curve = results.Curve();
  const auto& speedup = curve.series(0).points(1).speedup();
  EXPECT_NEAR(speedup.mean(), 1.910, 0.0005);
  EXPECT_NEAR(speedup.low(), 1.880, 0.0005);
  EXPECT_NEAR(speedup.high(), 1.940, 0.0005);
  EXPECT_NEAR(WidestHalfWidth(curve).value(), 0.0159, 0.0001);
  EXPECT_THAT(curve.series(0).notes(), Contains(HasSubstr("computed at 96.5%")));
}

TEST(Precision, TheConfidenceOfTwoCellsRisesAfterTheFirstLook) {
  struct Expected {
    int min;
    double first, later;
  };
  constexpr Expected kTable[] = {{0, 0.965, 0.98}, {2, 0.965, 0.98}, {3, 0.965, 0.975}, {5, 0.965, 0.97}};
  for (const Expected& expected : kTable) {
    v1::AdaptiveRepeats rule;
    rule.set_min(expected.min);
    const int first = std::max(2, expected.min);
    EXPECT_EQ(SequentialConfidence(rule, 2, first), expected.first) << "min " << expected.min;
    EXPECT_EQ(SequentialConfidence(rule, 2, first + 1), expected.later) << "min " << expected.min;
    EXPECT_EQ(SequentialConfidence(rule, 3, first + 1), 0.965) << "min " << expected.min;
  }
}

TEST(Precision, BlocksWithoutAResultAreNoLooks) {
  Results results = Adaptive(2);
  results.Cell(1).Ok({100, 101}).Other(db::RunState::kFailed).Other(db::RunState::kSkipped);
  results.Cell(2).Ok({200}).Other(db::RunState::kFailed).Other(db::RunState::kFailed);
  const CellList parameters = results.Parameters();
  const StudyRows rows = results.AsRows(parameters);
  EXPECT_EQ(BlocksWithResults(BlockOfRepeat(rows.rows)), 2);
  EXPECT_EQ(rows.sequential, 0.965);
}

TEST(Precision, ASizeThatCannotBeComparedYetNeedsMoreBlocks) {
  Results results = Adaptive(3);
  results.Cell(1).Ok({100, 101}).Other(db::RunState::kFailed);
  results.Cell(2).Ok({190, 192, 191});
  results.Cell(4).Other(db::RunState::kFailed).Other(db::RunState::kFailed).Ok({380});
  const auto curve = results.Curve();
  EXPECT_TRUE(curve.series(0).points(1).speedup().has_low());
  EXPECT_FALSE(curve.series(0).points(2).has_speedup());
  EXPECT_EQ(WidestHalfWidth(curve), HUGE_VAL) << "the study must not end without a speedup of 4 ranks";
}

TEST(Precision, TheMethodDoesNotChangeAtEightBlocks) {
  const std::vector<double> base = {100, 101, 99, 100, 102, 98, 100, 101, 99},
                            twice = {198, 203, 197, 201, 203, 196, 199, 203, 199};
  Results results = Adaptive(3);
  results.Cell(1).Ok(base).Cell(2).Ok(twice);
  double mean = 0, squares = 0;
  for (size_t i = 0; i < base.size(); ++i) mean += std::log(twice[i] / base[i]) / 9;
  for (size_t i = 0; i < base.size(); ++i) squares += std::pow(std::log(twice[i] / base[i]) - mean, 2);
  const double half = StudentQuantile(0.9875, 8) * std::sqrt(squares / 8 / 9);
  EXPECT_NEAR(WidestHalfWidth(results.Curve()).value(), std::exp(half) - 1, 1e-9);
}

TEST(Precision, AdviceHasTheIntervalsOfTheCurve) {
  Results results = Adaptive(3);
  results.Cell(1).Ok({100, 200, 50}).Cell(2).Ok({190, 384, 95.5});
  const auto curve = results.Curve();
  const auto& speedup = curve.series(0).points(1).speedup();
  const auto advice = results.Advise({});
  const auto& gain = advice.at(0).sizes(1).gain();
  EXPECT_NEAR(gain.mean(), speedup.mean() - 1, 1e-12);
  EXPECT_NEAR(gain.low(), speedup.low() - 1, 1e-12);
  EXPECT_NEAR(gain.high(), speedup.high() - 1, 1e-12);
}

TEST(Precision, AdviceHasTheIntervalsOfTheCurveAfterARepeatWithoutResults) {
  Results results;
  const std::vector<std::vector<double>> throughputs = {{100, 110}, {190, 200}, {350, 390}, {700, 720}};
  for (int i = 0; i < 4; ++i)
    results.Cell(1 << i).Ok({throughputs[i][0]}).Other(db::RunState::kFailed).Ok({throughputs[i][1]});
  const auto curve = results.Curve();
  const auto& speedup = curve.series(0).points(1).speedup();
  const auto advice = results.Advise({});
  const auto& gain = advice.at(0).sizes(1).gain();
  ASSERT_TRUE(speedup.has_low());
  EXPECT_NEAR(gain.low(), speedup.low() - 1, 1e-12);
  EXPECT_NEAR(gain.high(), speedup.high() - 1, 1e-12);
}

TEST(Precision, OnlyCellsWithIntervalsCount) {
  Results results = Adaptive(2);
  results.Engine("native/ddp", 1).Ok({100, 101, 102});
  results.Baseline("native/ddp", 1).Ok({100, 101, 102});
  results.Engine("native/ddp", 2).Ok({190, 192, 191});
  results.Engine("native/ddp", 4).Excluded();
  EXPECT_EQ(results.AsRows(results.Parameters()).sequential, 0.98) << "as in a study of two cells";
}

TEST(Precision, FactorsHaveTheConfidenceOfTheStudy) {
  const auto half_width = [](bool adaptive) {
    Results results = adaptive ? Adaptive(3) : Results();
    results.Cell(1).Cell(2);
    for (const double wait : {0.10, 0.12, 0.15}) {
      db::RunTimes times;
      times.ranks = {{1, wait, 0}, {1, wait, 0}};
      results.Ok({256}).Times(times);
    }
    const auto curve = results.Explained();
    const auto& found = curve.series(0).points(1).factors().communication();
    return std::log(found.high() / found.mean());
  };
  EXPECT_NEAR(half_width(true) / half_width(false), StudentQuantile(0.9825, 2) / StudentQuantile(0.975, 2),
              1e-6);
}

TEST(Precision, TheTestOfALawHasItsOwnLevel) {
  // p is between 3.5 and 5%.
  const auto rejected = [](bool adaptive) {
    Results results = adaptive ? Adaptive(3) : Results();
    results.Cell(1)
        .Ok({100, 101, 99})
        .Cell(2)
        .Ok({190, 194, 192})
        .Cell(4)
        .Ok({400, 380, 390})
        .Cell(8)
        .Ok({600, 630, 645});
    const auto curve = results.Curve();
    const auto& test = curve.series(0).fits(0).lack_of_fit();
    EXPECT_GT(test.p(), 0.035);
    EXPECT_LT(test.p(), 0.05);
    return test.rejected();
  };
  EXPECT_TRUE(rejected(false));
  EXPECT_TRUE(rejected(true));
}

TEST(Precision, AdviceOmitsASizeThatSharesNoBlockWithASmallerOne) {
  Results results = Adaptive(2);
  results.Cell(1).Ok({100, 101});
  results.Cell(2).Ok({190}).Other(db::RunState::kFailed);
  results.Cell(4).Other(db::RunState::kFailed).Ok({380});
  const auto advice = results.Advise({});
  ASSERT_EQ(advice.size(), 1u);
  ASSERT_EQ(advice[0].sizes_size(), 2);
  EXPECT_EQ(advice[0].sizes(1).ranks(), 2);
}

TEST(Precision, ComparisonsOfAStudyHaveItsConfidence) {
  const auto half_width = [](bool adaptive) {
    Results results = adaptive ? Adaptive(3) : Results();
    results.Cell(2, R"({"engine":"a"})").Ok({110, 121, 132});
    results.Cell(2, R"({"engine":"b"})").Ok({100, 110, 121});
    const auto compared = Results::Compare({&results}, "engine", 0);
    const auto& effect = compared.groups(0).pairs(0).effect();
    return std::log1p(effect.high()) - std::log1p(effect.mean());
  };
  // Of two values, Tukey's interval is Student's, here with two degrees of freedom.
  EXPECT_NEAR(half_width(true) / half_width(false), StudentQuantile(0.9825, 2) / StudentQuantile(0.975, 2),
              1e-6);
}

TEST(Precision, ComparisonsOfStudiesHaveTheHighestConfidence) {
  const auto half_width = [](bool adaptive) {
    Results first = adaptive ? Adaptive(3) : Results(), second;
    first.Cell(2).Ok({110, 121, 132});
    second.Cell(2).Ok({100, 110, 121});
    const auto compared = Results::Compare({&first, &second}, "study", 0);
    const auto& effect = compared.groups(0).pairs(0).effect();
    return std::log1p(effect.high()) - std::log1p(effect.mean());
  };
  EXPECT_GT(half_width(true) / half_width(false), 1.1);
}

TEST(Precision, StudiesThatAreBlocksNeedNoCorrection) {
  const auto high = [](bool adaptive) {
    std::vector<Results> studies(3, adaptive ? Adaptive(3) : Results());
    for (size_t i = 0; i < studies.size(); ++i) {
      studies[i].Cell(2, R"({"engine":"a"})").Ok({110.0 + static_cast<double>(i * i)});
      studies[i].Cell(2, R"({"engine":"b"})").Ok({100.0});
    }
    const auto compared = Results::Compare({&studies[0], &studies[1], &studies[2]}, "engine", 0);
    return compared.groups(0).pairs(0).effect().high();
  };
  EXPECT_DOUBLE_EQ(high(true), high(false));
}

TEST(Precision, TheWidestSpeedupCounts) {
  Results results = Adaptive(3);
  results.Cell(1).Ok({100, 101, 99}).Cell(2).Ok({200, 202, 198}).Cell(4).Ok({390, 350, 420});
  const auto curve = results.Curve();
  const auto& widest = curve.series(0).points(2).speedup();
  EXPECT_DOUBLE_EQ(WidestHalfWidth(curve).value(), std::sqrt(widest.high() / widest.low()) - 1);
}

TEST(Precision, WithOneWorldSizeTheMeansCount) {
  Results results = Adaptive(3);
  results.Cell(4).Ok({100, 102, 98});
  const auto curve = results.Curve();
  const auto& mean = curve.series(0).points(0).throughput();
  EXPECT_DOUBLE_EQ(WidestHalfWidth(curve).value(), std::sqrt(mean.high() / mean.low()) - 1);
}

TEST(Precision, APointWithoutAnIntervalIsNotPrecise) {
  Results results = Adaptive(2);
  results.Cell(1).Ok({100, 101}).Cell(2).Ok({200}).Other(db::RunState::kFailed);
  EXPECT_EQ(WidestHalfWidth(results.Curve()).value(), HUGE_VAL);
  EXPECT_FALSE(WidestHalfWidth(Results().Cell(1).Curve()).has_value()) << "no results";
}

TEST(Precision, SkippedRunsWereNotAskedFor) {
  Results results = Adaptive(2);
  results.Cell(1).Ok({100, 101}).Other(db::RunState::kSkipped);
  results.Cell(2).Ok({200, 201}).Other(db::RunState::kSkipped);
  const auto curve = results.Curve();
  for (const auto& point : curve.series(0).points()) {
    EXPECT_EQ(point.state(), v1::CurvePoint::OK);
    EXPECT_EQ(point.asked(), 2);
    EXPECT_EQ(point.n(), 2);
  }
}

}  // namespace
}  // namespace scalelab::analysis
