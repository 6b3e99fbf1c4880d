// Tests of the communication cost from runs with communication, without it and without overlap.
#include "analysis/communication.h"

#include <cmath>
#include <limits>

#include "analysis/curve.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/analysis/fixture.h"

namespace scalelab::analysis {
namespace {

using db::Cause;
using db::RunState;
using scalelab::v1::CommunicationCost;
using testing::HasSubstr;

constexpr char kMeasure[] = R"({"study":"s","measure":{"communication":true}})";
constexpr char kDdp[] = "native/ddp", kHorovod[] = "native/horovod", kNone[] = "native/none",
               kSerial[] = "native/serial";

// Steps of a cell, of native/none and of native/serial.
Results Measured() { return Results(kMeasure).Engine(kDdp, 2).Steps({1.20, 1.40, 1.30}); }

CommunicationCost CostOf(const Results& results, int series = 0, int point = 0) {
  return results.Curve().series(series).points(point).communication();
}

// Databases of older versions may have impossible values.
TEST(CommunicationCost, IgnoresRunsWithoutAPossibleThroughput) {
  Results results = Measured();
  results.Baseline(kNone, 2).Steps({1.00, 1.10, 1.05}).Baseline(kSerial, 2).Steps({1.50, 1.65});
  results.Ok({std::numeric_limits<double>::quiet_NaN()});
  EXPECT_EQ(CostOf(results).n(), 3);
  EXPECT_NEAR(CostOf(results).total().mean(), 0.525, 1e-12);
}

TEST(CommunicationCost, NumbersByHand) {
  Results results = Measured();
  results.Baseline(kNone, 2).Steps({1.00, 1.10, 1.05}).Baseline(kSerial, 2).Steps({1.50, 1.65, 1.50});
  const CommunicationCost cost = CostOf(results);
  // exposed 0.20, 0.30, 0.25: deviation 0.05, half width 4.30265 * 0.05 / sqrt(3) = 0.124207.
  EXPECT_EQ(cost.n(), 3);
  EXPECT_NEAR(cost.exposed().mean(), 0.25, 1e-12);
  EXPECT_NEAR(cost.exposed().stddev(), 0.05, 1e-12);
  EXPECT_NEAR(cost.exposed().low(), 0.25 - 0.124207, 1e-6);
  EXPECT_NEAR(cost.exposed().high(), 0.25 + 0.124207, 1e-6);
  // total 0.50, 0.55, 0.45.
  EXPECT_NEAR(cost.total().mean(), 0.50, 1e-12);
  EXPECT_NEAR(cost.total().low(), 0.50 - 0.124207, 1e-6);
  // hidden 1 - 0.25 / 0.50; within blocks 0.6, 0.454545, 0.444444. Fieller: (0.25 - r 0.50)^2 = 4.30265^2
  // var(x - r y) has the roots 0.277906 and 0.722094.
  EXPECT_NEAR(cost.hidden().mean(), 0.5, 1e-12);
  EXPECT_NEAR(cost.hidden().median(), 0.454545, 1e-6);
  EXPECT_NEAR(cost.hidden().low(), 0.277906, 1e-6);
  EXPECT_NEAR(cost.hidden().high(), 0.722094, 1e-6);
  EXPECT_EQ(cost.missing(), "");
}

TEST(CommunicationCost, EffectsOfABlockCancel) {
  Results results(kMeasure);
  results.Engine(kDdp, 2).Steps({1.2, 5.2, 3.2});
  results.Baseline(kNone, 2).Steps({1.0, 5.0, 3.0}).Baseline(kSerial, 2).Steps({1.8, 5.8, 3.8});
  const CommunicationCost cost = CostOf(results);
  EXPECT_NEAR(cost.exposed().mean(), 0.2, 1e-12);
  EXPECT_NEAR(cost.exposed().high() - cost.exposed().low(), 0, 1e-9);
  EXPECT_NEAR(cost.hidden().mean(), 0.75, 1e-9);
  EXPECT_NEAR(cost.hidden().high() - cost.hidden().low(), 0, 1e-6);
}

TEST(CommunicationCost, BlocksThatLackARunDoNotCount) {
  Results results(kMeasure);
  results.Engine(kDdp, 2).Other(RunState::kFailed).Steps({1.2, 1.3, 1.2});
  results.Baseline(kNone, 2).Steps({0.5, 1.0, 1.0}).Other(RunState::kFailed).Steps({9});
  results.Baseline(kSerial, 2).Steps({9, 1.55, 1.55, 9});
  const CommunicationCost cost = CostOf(results);
  EXPECT_EQ(cost.n(), 2) << "repeats 1 and 2";
  EXPECT_NEAR(cost.exposed().mean(), (0.2 + 0.3) / 2, 1e-12);
  EXPECT_NEAR(cost.total().mean(), (8.5 + 0.55 + 0.55) / 3, 1e-12);
  EXPECT_NEAR(cost.hidden().mean(), 1 - 0.25 / 0.55, 1e-12);
}

TEST(CommunicationCost, OnePairOfBaselinesServesEveryEngineAndIsInNoSeries) {
  Results results(kMeasure);
  for (const char* engine : {kDdp, kHorovod})
    results.Engine(engine, 1).Steps({2}).Engine(engine, 2).Steps({1.5});
  results.Baseline(kNone, 2).Steps({1.0}).Baseline(kSerial, 2).Steps({2.0});
  const auto curve = results.Curve();
  ASSERT_EQ(curve.series_size(), 2);
  for (const auto& series : curve.series()) {
    EXPECT_FALSE(series.points(0).has_communication()) << "one rank has none";
    EXPECT_DOUBLE_EQ(series.points(1).communication().exposed().mean(), 0.5);
    EXPECT_DOUBLE_EQ(series.points(1).communication().total().mean(), 1.0);
    EXPECT_DOUBLE_EQ(series.points(1).communication().hidden().mean(), 0.5);
    EXPECT_FALSE(series.points(1).communication().hidden().has_low()) << "of one repeat";
    EXPECT_NEAR(series.points(1).speedup().mean(), 2 / 1.5, 1e-12);
  }
}

TEST(CommunicationCost, RunsOfTheMatrixAreSeriesToo) {
  Results results = Measured();
  results.Engine(kNone, 2).Steps({1, 1, 1}).Baseline(kSerial, 2).Steps({2, 2, 2});
  const auto curve = results.Curve();
  ASSERT_EQ(curve.series_size(), 2);
  EXPECT_EQ(curve.series(1).key().fields().at("engine").string_value(), kNone);
  EXPECT_TRUE(curve.series(0).points(0).communication().has_hidden());
  EXPECT_FALSE(curve.series(1).points(0).has_communication());
}

TEST(CommunicationCost, ACellHasTheBaselinesOfItsOwnSettings) {
  Results results(kMeasure);
  results.Engine(kHorovod, 2, R"(,"precision":"fp32","cycleTimeMs":9)").Steps({1.5});
  results.Baseline(kNone, 2, R"(,"precision":"amp-bf16")").Steps({0.1});
  results.Baseline(kNone, 2, R"(,"precision":"fp32","cycleTimeMs":1)").Steps({1.2});
  EXPECT_NEAR(CostOf(results).exposed().mean(), 0.3, 1e-12);
}

TEST(CommunicationCost, IsOnlyInCurvesThatMeasureIt) {
  Results results(R"({"study":"s"})");
  results.Engine(kDdp, 2).Steps({1.2}).Engine(kNone, 2).Steps({1.0});
  EXPECT_FALSE(results.Curve().series(0).points(0).has_communication());
}

TEST(CommunicationCost, WithoutUnsynchronisedRunsReturnsOnlyTheReason) {
  const auto missing = [](auto none) {
    Results results = Measured();
    results.Baseline(kNone, 2);
    none(results);
    results.Baseline(kSerial, 2).Steps({2, 2, 2});
    const CommunicationCost cost = CostOf(results);
    EXPECT_FALSE(cost.has_exposed() || cost.has_total() || cost.has_hidden());
    EXPECT_EQ(cost.n(), 0);
    return cost.missing();
  };
  EXPECT_EQ(
      missing([](Results& r) { r.Other(RunState::kFailed, Cause::kTrainerError).Other(RunState::kFailed); }),
      "no communication cost: every run of native/none failed");
  EXPECT_EQ(missing([](Results& r) { r.Other(RunState::kFailed).Other(RunState::kQueued); }),
            "no communication cost: native/none has no result yet");
  EXPECT_EQ(missing([](Results& r) { r.Other(RunState::kFailed, Cause::kOutOfMemory); }),
            "no communication cost: native/none ran out of memory");
  EXPECT_EQ(missing([](Results& r) { r.Other(RunState::kCancelled); }),
            "no communication cost: native/none was cancelled");
  EXPECT_EQ(missing([](Results& r) {
              r.Steps({1, 1}, "v100");
            }),
            "no communication cost: native/none ran on other hardware or software");
}

TEST(CommunicationCost, WithoutSerialRunsTheExposedPartIsStillKnown) {
  Results results = Measured();
  results.Baseline(kNone, 2).Steps({1, 1, 1}).Baseline(kSerial, 2).Other(RunState::kFailed);
  const CommunicationCost cost = CostOf(results);
  EXPECT_NEAR(cost.exposed().mean(), 0.3, 1e-12);
  EXPECT_FALSE(cost.has_total() || cost.has_hidden());
  EXPECT_EQ(cost.missing(), "no total and hidden communication: the run of native/serial failed");
  EXPECT_EQ(CostOf(Measured()).missing(), "no communication cost: the study has no runs of native/none");
}

TEST(CommunicationCost, HasNoHiddenShareOfAnInsignificantTotal) {
  Results results = Measured();
  results.Baseline(kNone, 2).Steps({1.00, 1.05, 1.02}).Baseline(kSerial, 2).Steps({1.01, 1.02, 1.05});
  const CommunicationCost cost = CostOf(results);
  EXPECT_TRUE(cost.has_total());
  EXPECT_LT(cost.total().low(), 0);
  EXPECT_FALSE(cost.has_hidden());
  EXPECT_THAT(cost.missing(), HasSubstr("the total is not significantly above 0"));
}

TEST(CommunicationCost, MayShowThatAnEngineCostsMoreThanNoOverlap) {
  Results results = Measured();
  results.Baseline(kNone, 2).Steps({1, 1, 1}).Baseline(kSerial, 2).Steps({1.1, 1.1, 1.1});
  EXPECT_LT(CostOf(results).hidden().mean(), 0);
}

TEST(CommunicationCost, ManyBlocksAreResampledAndAgreeWithFieller) {
  std::vector<double> none, cell, serial;
  for (int i = 0; i < 40; ++i) {
    none.push_back(1 + 0.02 * std::sin(i * 7));
    cell.push_back(none.back() + 0.10 + 0.02 * std::sin(i * 3 + 1));
    serial.push_back(none.back() + 0.40 + 0.03 * std::sin(i * 5 + 2));
  }
  Results results(kMeasure);
  results.Engine(kDdp, 2).Steps(cell).Baseline(kNone, 2).Steps(none).Baseline(kSerial, 2).Steps(serial);
  const auto resampled = results.Curve().series(0).points(0).communication().hidden();
  const auto fieller = results.Curve({.resamples = 0}).series(0).points(0).communication().hidden();
  EXPECT_DOUBLE_EQ(resampled.mean(), fieller.mean());
  EXPECT_NE(resampled.low(), fieller.low());
  EXPECT_NEAR(resampled.low(), fieller.low(), 0.004);
  EXPECT_NEAR(resampled.high(), fieller.high(), 0.004);
}

}  // namespace
}  // namespace scalelab::analysis
