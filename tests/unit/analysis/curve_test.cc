#include "analysis/curve.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/analysis/fixture.h"

namespace scalelab::analysis {
namespace {

using db::Cause;
using db::RunState;
using scalelab::v1::CurvePoint;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kDdp[] = R"({"engine":"native/ddp"})";
constexpr char kHorovod[] = R"({"engine":"native/horovod"})";

TEST(Curve, NumbersByHand) {
  // Means 100 and 190. Ratios within blocks 180/90 = 2, 190/100 = 1.9, 200/110 = 1.818181.
  Results results(R"({"study":"by-hand"})");
  results.Cell(1).Ok({90, 100, 110}).Cell(2).Ok({180, 190, 200});
  const auto curve = results.Curve();
  EXPECT_EQ(curve.display_name(), "by-hand");
  EXPECT_EQ(curve.scaling(), "strong");
  ASSERT_EQ(curve.series_size(), 1);
  const auto& series = curve.series(0);
  EXPECT_EQ(series.baseline_ranks(), 1);
  EXPECT_DOUBLE_EQ(series.baseline_throughput(), 100);
  EXPECT_EQ(series.fingerprint(), "a100");
  ASSERT_EQ(series.points_size(), 2);
  const auto& two = series.points(1);
  EXPECT_EQ(two.ranks(), 2);
  EXPECT_EQ(two.n(), 3);
  EXPECT_EQ(two.state(), CurvePoint::OK);
  EXPECT_EQ(two.global_batch(), 256);
  EXPECT_EQ(two.batch_per_rank(), 128);
  EXPECT_DOUBLE_EQ(two.throughput().mean(), 190);
  EXPECT_DOUBLE_EQ(two.throughput().stddev(), 10);
  EXPECT_NEAR(two.throughput().low(), 190 - 4.30265 * 10 / std::sqrt(3.0), 1e-3);
  // Logarithms of the ratios: 0.693147, 0.641854, 0.597837; mean 0.644279, variance 0.0022754. With two
  // cells, 2 s^2 is that variance, so the error is sqrt(0.0022754 / 3) = 0.0275403, and the half width is
  // 4.30265 times the error.
  EXPECT_NEAR(two.speedup().mean(), std::exp(0.644279), 2e-6);
  EXPECT_DOUBLE_EQ(two.speedup().median(), 1.9);
  EXPECT_NEAR(two.speedup().low(), std::exp(0.644279 - 0.118496), 1e-5);
  EXPECT_NEAR(two.speedup().high(), std::exp(0.644279 + 0.118496), 1e-5);
  EXPECT_DOUBLE_EQ(two.efficiency().mean(), two.speedup().mean() / 2);
  EXPECT_DOUBLE_EQ(two.efficiency().low(), two.speedup().low() / 2);
  EXPECT_DOUBLE_EQ(two.efficiency().high(), two.speedup().high() / 2);
}

TEST(Curve, TheBaselineIsOneWithoutNoise) {
  for (int n : {1, 3, 12}) {
    Results results;
    std::vector<double> values;
    for (int i = 0; i < n; ++i) values.push_back(100 + i);
    results.Cell(2).Ok(values);
    const auto curve = results.Curve();
    const auto& point = curve.series(0).points(0);
    for (const auto* e : {&point.speedup(), &point.efficiency()}) {
      EXPECT_EQ(e->mean(), 1);
      EXPECT_EQ(e->low(), 1);
      EXPECT_EQ(e->high(), 1);
    }
  }
}

TEST(Curve, RepeatsThatHaveNotRunChangeNoInterval) {
  const auto series = [](int repeats, int queued) {
    Results results;
    for (const int ranks : {1, 2}) {
      std::vector<double> values;
      for (int i = 0; i < repeats; ++i)
        values.push_back(100 * ranks * (1 + 0.02 * std::sin(7.0 * i + 2 * ranks)));
      results.Cell(ranks).Ok(values);
      for (int i = 0; i < queued; ++i) results.Other(RunState::kQueued);
    }
    return results.Curve().series(0);
  };
  for (const int repeats : {3, 10}) {
    const auto ended = series(repeats, 0), running = series(repeats, 300);
    EXPECT_EQ(running.points(1).speedup().low(), ended.points(1).speedup().low()) << repeats;
    EXPECT_EQ(running.points(1).speedup().high(), ended.points(1).speedup().high()) << repeats;
    EXPECT_GT(ended.noise_floor(), 0) << repeats;
    EXPECT_EQ(running.noise_floor(), ended.noise_floor()) << repeats;
  }
}

TEST(Curve, SeriesAreTheValuesOfAllAxesButRanksInFileOrder) {
  Results results;
  results.Cell(4, kHorovod)
      .Ok({300})
      .Cell(1, kDdp)
      .Ok({100})
      .Cell(1, kHorovod)
      .Ok({90})
      .Cell(2, kDdp)
      .Ok({180});
  const auto curve = results.Curve();
  ASSERT_EQ(curve.series_size(), 2);
  EXPECT_EQ(curve.series(0).key().fields().at("engine").string_value(), "native/horovod");
  EXPECT_EQ(curve.series(0).key().fields().count("ranks"), 0u);
  EXPECT_EQ(curve.series(0).points(0).ranks(), 1);
  EXPECT_EQ(curve.series(0).points(1).ranks(), 4);
  EXPECT_EQ(curve.series(1).key().fields().at("engine").string_value(), "native/ddp");
  EXPECT_DOUBLE_EQ(curve.series(1).points(1).speedup().mean(), 1.8);
}

TEST(Curve, NamesTheMetricThatTheBaselineLacks) {
  Results results;
  results.Cell(1).Other(RunState::kSucceeded).Cell(2).Ok({100});
  EXPECT_THAT(results.Curve().series(0).notes(),
              Contains("no speedups: the baseline of 1 rank succeeded without a usable run/throughput"));
  Results failed;
  failed.Cell(1).Other(RunState::kFailed).Cell(2).Ok({100});
  EXPECT_THAT(failed.Curve().series(0).notes(),
              Contains("no speedups: the baseline of 1 rank has no results in this series"));
}

TEST(Curve, TheOrderOfTheKeysAxesDoesNotMatter) {
  Results results;
  results.Cell(1, R"({"a":1,"b":"x"})").Ok({100}).Cell(2, R"({"b":"x","a":1})").Ok({180});
  EXPECT_EQ(results.Curve().series_size(), 1);
}

TEST(Curve, ABaselineOfOtherRanksIsUsed) {
  Results results(R"({"baseline":{"ranks":2}})");
  results.Cell(1).Ok({100}).Cell(2).Ok({180}).Cell(4).Ok({360});
  const auto curve = results.Curve();
  EXPECT_EQ(curve.series(0).baseline_ranks(), 2);
  EXPECT_DOUBLE_EQ(curve.series(0).points(0).speedup().mean(), 100.0 / 180);
  EXPECT_DOUBLE_EQ(curve.series(0).points(0).efficiency().mean(), 2 * 100.0 / 180);
  EXPECT_DOUBLE_EQ(curve.series(0).points(2).efficiency().mean(), 1);
}

TEST(Curve, ABaselineOfAnotherEngineServesEverySeries) {
  Results results(R"({"baseline":{"engine":"native/ddp","ranks":1}})");
  results.Cell(1, kDdp).Ok({100, 100}).Cell(1, kHorovod).Ok({80, 80}).Cell(2, kHorovod).Ok({150, 150});
  const auto curve = results.Curve();
  EXPECT_DOUBLE_EQ(curve.series(1).baseline_throughput(), 100);
  EXPECT_DOUBLE_EQ(curve.series(1).points(0).speedup().mean(), 0.8);
  EXPECT_DOUBLE_EQ(curve.series(1).points(1).speedup().mean(), 1.5);
  EXPECT_DOUBLE_EQ(curve.series(1).points(1).efficiency().mean(), 0.75);
  EXPECT_THAT(curve.series(1).notes(), Contains(HasSubstr("native/ddp")));
  EXPECT_EQ(curve.series(0).points(0).speedup().high(), 1);
}

TEST(Curve, ABaselineOfAnotherEngineWithoutResultsHasNoHardware) {
  for (const RunState state : {RunState::kFailed, RunState::kQueued}) {
    Results results(R"({"baseline":{"engine":"native/ddp","ranks":1}})");
    results.Cell(1, kDdp).Other(state).Cell(1, kHorovod).Ok({80, 80});
    const auto curve = results.Curve();
    EXPECT_FALSE(curve.series(1).points(0).has_speedup());
    EXPECT_THAT(curve.series(1).notes(), Contains(HasSubstr("baseline of 1 rank has no results")));
    EXPECT_THAT(curve.series(1).notes(), Each(Not(HasSubstr("other hardware"))));
  }
}

TEST(Curve, ABaselineOfOtherHardwareIsNamed) {
  Results results(R"({"baseline":{"engine":"native/ddp","ranks":1}})");
  results.Cell(1, kDdp).Ok({100, 100}, "v100").Cell(1, kHorovod).Ok({80, 80});
  const auto curve = results.Curve();
  EXPECT_TRUE(curve.series(1).points(0).has_speedup());
  EXPECT_THAT(curve.series(1).notes(),
              Contains("the baseline ran on other hardware or software (fingerprint v100)"));
}

TEST(Curve, ABaselineNamesOnlyItsOwnAxesAndLeavesTheOthers) {
  Results results(R"({"baseline":{"engine":"native/ddp"},"fixed":{"model":"resnet20"}})");
  results.Cell(1, R"({"engine":"native/ddp","precision":"fp32"})").Ok({100});
  results.Cell(1, R"({"engine":"native/ddp","precision":"amp-bf16"})").Ok({200});
  results.Cell(1, R"({"engine":"native/horovod","precision":"amp-bf16"})").Ok({100});
  const auto curve = results.Curve();
  EXPECT_DOUBLE_EQ(curve.series(2).points(0).speedup().mean(), 0.5);
  EXPECT_DOUBLE_EQ(curve.series(0).points(0).speedup().mean(), 1);
}

TEST(Curve, ABaselineWithoutResultsCausesANoteAndNoRatios) {
  Results results;
  results.Cell(1).Other(RunState::kFailed).Cell(2).Ok({180, 181});
  const auto curve = results.Curve();
  EXPECT_EQ(curve.series(0).baseline_ranks(), 0);
  EXPECT_FALSE(curve.series(0).points(1).has_speedup());
  EXPECT_TRUE(curve.series(0).points(1).has_throughput());
  EXPECT_THAT(curve.series(0).notes(), Contains(HasSubstr("baseline of 1 rank has no results")));
}

TEST(Curve, EveryStateOfAPoint) {
  Results results;
  results.Cell(1).Ok({100, 101});
  results.Cell(2).Ok({100}).Other(RunState::kFailed);
  results.Cell(3).Other(RunState::kFailed, Cause::kTrainerError).Other(RunState::kCancelled);
  results.Cell(4)
      .Other(RunState::kFailed, Cause::kOutOfMemory)
      .Other(RunState::kFailed, Cause::kTrainerError);
  results.Cell(5).Other(RunState::kQueued).Other(RunState::kFailed);
  results.Cell(6).Other(RunState::kRunning);
  results.Cell(7).Other(RunState::kCancelled);
  results.Cell(8);
  results.Cell(9).Excluded();
  results.Cell(10).Ok({100}).Other(RunState::kQueued);
  const auto curve = results.Curve();
  std::vector<CurvePoint::State> states;
  for (const auto& point : curve.series(0).points()) states.push_back(point.state());
  EXPECT_THAT(states, ::testing::ElementsAre(CurvePoint::OK, CurvePoint::PARTIAL, CurvePoint::FAILED,
                                             CurvePoint::OUT_OF_MEMORY, CurvePoint::PENDING,
                                             CurvePoint::PENDING, CurvePoint::MISSING, CurvePoint::MISSING,
                                             CurvePoint::EXCLUDED, CurvePoint::PARTIAL));
  EXPECT_EQ(curve.series(0).points(1).n(), 1);
  EXPECT_EQ(curve.series(0).points(1).failed(), 1);
  EXPECT_EQ(curve.series(0).points(3).failed(), 2);
  EXPECT_FALSE(curve.series(0).points(2).has_throughput());
}

TEST(Curve, RunsOnOtherHardwareFormASeparateSeries) {
  Results results;
  results.Cell(1).Ok({100, 100, 100}).Ok({50}, "v100").Cell(2).Ok({200, 200}).Ok({80, 80}, "v100");
  const auto curve = results.Curve();
  ASSERT_EQ(curve.series_size(), 2);
  EXPECT_EQ(curve.series(0).fingerprint(), "a100");
  EXPECT_EQ(curve.series(0).points(0).n(), 3);
  EXPECT_DOUBLE_EQ(curve.series(0).points(1).speedup().mean(), 2);
  EXPECT_EQ(curve.series(1).fingerprint(), "v100");
  EXPECT_EQ(curve.series(1).points(1).n(), 2);
  EXPECT_DOUBLE_EQ(curve.series(1).points(1).speedup().mean(), 1.6);  // relative to its own baseline
  EXPECT_THAT(curve.series(0).notes(), Contains(HasSubstr("2 kinds of hardware or software")));
  EXPECT_THAT(curve.series(1).notes(), Contains(HasSubstr("(v100) has 3 runs")));
}

TEST(Curve, NeverComparesWithABaselineOfOtherHardwareOfTheSameCells) {
  Results results;
  results.Cell(1).Ok({100, 100, 100}).Cell(2).Ok({80}, "v100");
  const auto curve = results.Curve();
  ASSERT_EQ(curve.series_size(), 2);
  EXPECT_EQ(curve.series(0).points_size(), 1);
  EXPECT_EQ(curve.series(1).points_size(), 1);
  EXPECT_FALSE(curve.series(1).points(0).has_speedup());
  EXPECT_EQ(curve.series(1).baseline_ranks(), 0);
}

TEST(Curve, MetricsOtherThanThroughputAreMeansOfThoseThatHaveThem) {
  Results results;
  results.Cell(1).Ok({100});
  results.last_row().accuracy = 0.9;
  results.last_row().comm_share = 0.1;
  results.Ok({100});
  results.last_row().accuracy = 0.92;
  results.last_row().train_loss = 0.5;
  const auto curve = results.Curve();
  const auto& point = curve.series(0).points(0);
  EXPECT_NEAR(point.accuracy().mean(), 0.91, 1e-12);
  EXPECT_LE(point.accuracy().high(), 1);
  EXPECT_NEAR(point.comm_share().mean(), 0.1, 1e-12);
  EXPECT_FALSE(point.comm_share().has_low());
  EXPECT_NEAR(point.train_loss().mean(), 0.5, 1e-12);
  EXPECT_FALSE(point.has_time_to_accuracy());
}

TEST(Curve, ARunWithoutThroughputCountsButGivesNoRatio) {
  Results results;
  results.Cell(1).Row(RunState::kSucceeded).accuracy = 0.5;
  const auto curve = results.Curve();
  EXPECT_EQ(curve.series(0).points(0).n(), 0);
  EXPECT_EQ(curve.series(0).points(0).asked(), 1);
  EXPECT_DOUBLE_EQ(curve.series(0).points(0).accuracy().mean(), 0.5);
  EXPECT_EQ(curve.series(0).points(0).state(), CurvePoint::OK);
  EXPECT_FALSE(curve.series(0).points(0).has_throughput());
  EXPECT_FALSE(curve.series(0).points(0).has_speedup());
}

TEST(Curve, OneRepeatHasANoteAndNoInterval) {
  Results results;
  results.Cell(1).Ok({100}).Cell(2).Ok({190});
  const auto curve = results.Curve();
  EXPECT_FALSE(curve.series(0).points(1).speedup().has_low());
  EXPECT_THAT(curve.series(0).notes(), Contains(HasSubstr("single repeats")));
}

TEST(Curve, EqualInputGivesEqualOutput) {
  Results results;
  for (int p : {1, 2, 4, 8}) {
    std::vector<double> values;
    for (int i = 0; i < 20; ++i) values.push_back(100 * p * (1 + 0.05 * std::sin(i * 7 + p)));
    results.Cell(p).Ok(values);
  }
  EXPECT_EQ(results.Curve().DebugString(), results.Curve().DebugString());
}

TEST(Curve, OfANewStudyIsPendingAndOfNoCellsEmpty) {
  EXPECT_EQ(Results().Curve().series_size(), 0);
  Results results(R"({"scaling":{"mode":"WEAK"}})");
  results.Cell(1).Other(RunState::kQueued);
  EXPECT_EQ(results.Curve().scaling(), "weak");
  EXPECT_EQ(results.Curve().series(0).points(0).state(), CurvePoint::PENDING);
  EXPECT_EQ(results.Curve().series(0).notes_size(), 0);
}

}  // namespace
}  // namespace scalelab::analysis
