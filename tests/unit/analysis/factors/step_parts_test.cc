#include "analysis/factors/step_parts.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/analysis/fixture.h"

namespace scalelab::analysis {
namespace {

using scalelab::v1::ScalingFactors;
using ::testing::HasSubstr;

db::RunTimes Times(const std::vector<double>& step, const std::vector<double>& exposed,
                   const std::vector<double>& data) {
  db::RunTimes times;
  for (size_t rank = 0; rank < step.size(); ++rank)
    times.ranks.push_back({step[rank], exposed[rank], data[rank]});
  return times;
}

TEST(StepParts, TheFactorsOfTheExampleInTheDocumentation) {
  // One rank computes for 1.0 of 1.1 seconds, and waits 0.1 for data. Of two ranks, rank 0 computes for 0.5 s, waits 0.06 for
  // data and 0.24 for communication; rank 1 computes for 0.6, waits 0.04 and 0.16: max(work + data) = 0.64.
  Results results;
  results.Cell(1).Ok({256 / 1.1}).Times(Times({1.1}, {0}, {0.1}));
  results.Cell(2).Ok({256 / 0.8}).Times(Times({0.8, 0.8}, {0.24, 0.16}, {0.06, 0.04}));
  const auto curve = results.Explained();
  const ScalingFactors& one = curve.series(0).points(0).factors();
  EXPECT_DOUBLE_EQ(one.load_balance().mean(), 1);
  EXPECT_NEAR(one.data().mean(), 1 / 1.1, 1e-12);
  EXPECT_NEAR(one.communication().mean(), 1, 1e-12);
  EXPECT_NEAR(one.computation().mean(), 1, 1e-12);
  const ScalingFactors& two = curve.series(0).points(1).factors();
  EXPECT_EQ(two.n(), 1);
  EXPECT_NEAR(two.load_balance().mean(), 0.55 / 0.6, 1e-12);
  EXPECT_NEAR(two.data().mean(), 0.6 / 0.64, 1e-12);
  EXPECT_NEAR(two.communication().mean(), 0.64 / 0.8, 1e-12);
  EXPECT_NEAR(two.computation().mean(), 1.0 / (2 * 0.55), 1e-12);
  EXPECT_NEAR(two.product().mean(), 1.0 / (2 * 0.8), 1e-12);
  EXPECT_FALSE(two.product().has_low());
  // The parts of the step of 0.8 s: 0.5 s would be ideal.
  EXPECT_NEAR(two.ideal_share(), 0.5 / 0.8, 1e-12);
  EXPECT_NEAR(two.slower_share(), 0.05 / 0.8, 1e-12);
  EXPECT_NEAR(two.imbalance_share(), 0.05 / 0.8, 1e-12);
  EXPECT_NEAR(two.data_share(), 0.04 / 0.8, 1e-12);
  EXPECT_NEAR(two.communication_share(), 0.16 / 0.8, 1e-12);
  EXPECT_DOUBLE_EQ(two.step_seconds(), 0.8);
  EXPECT_FALSE(two.has_slowest_rank()) << "one repeat has no noise";
}

TEST(StepParts, IntervalsAreThoseOfGeometricMeans) {
  // Work 0.5, 0.6 and 0.8, 0.8 of a step of 1: load balance 0.55/0.6 and 1, communication 0.6 and 0.8.
  Results results;
  results.Cell(2).Ok({256}).Times(Times({1, 1}, {0.5, 0.4}, {0, 0}));
  results.Ok({256}).Times(Times({1, 1}, {0.2, 0.2}, {0, 0}));
  const auto curve = results.Explained();
  const ScalingFactors& two = curve.series(0).points(0).factors();
  const double mean = (std::log(0.6) + std::log(0.8)) / 2,
               half = 12.7062047 * std::abs(std::log(0.6 / 0.8)) / 2;
  EXPECT_NEAR(two.communication().mean(), std::exp(mean), 1e-12);
  EXPECT_NEAR(two.communication().low(), std::exp(mean - half), 1e-8);
  EXPECT_DOUBLE_EQ(two.communication().high(), 1) << "a share is not above 1";
  EXPECT_NEAR(
      two.product().mean(),
      two.load_balance().mean() * two.data().mean() * two.communication().mean() * two.computation().mean(),
      1e-12);
  EXPECT_NEAR(two.computation().mean(), 1, 1e-12) << "it is the base case";
}

TEST(StepParts, WeakScalingComparesTheComputationPerSample) {
  StepCell one{1, 32, {}}, two{2, 64, {}};
  const db::RunTimes single = Times({1}, {0}, {0}), both = Times({1.25, 1.25}, {0.25, 0.25}, {0, 0});
  one.repeats = {*PartsOf(single, 0)};
  two.repeats = {*PartsOf(both, 0)};
  const ScalingFactors factors = MakeFactors(two, &one, CriticalValues(0.95));
  EXPECT_DOUBLE_EQ(factors.computation().mean(), 1);
  EXPECT_DOUBLE_EQ(factors.ideal_share(), 0.8);
  EXPECT_DOUBLE_EQ(factors.communication_share(), 0.2);
}

TEST(StepParts, RepeatsWithoutABaseCaseInTheSameRepeatHaveNoInterval) {
  StepCell one{1, 32, {}}, two{2, 32, {}};
  const db::RunTimes single = Times({1}, {0}, {0}), both = Times({0.5, 0.5}, {0, 0}, {0, 0});
  one.repeats = {*PartsOf(single, 0)};
  two.repeats = {*PartsOf(both, 1), *PartsOf(both, 2)};
  const ScalingFactors factors = MakeFactors(two, &one, CriticalValues(0.95));
  EXPECT_DOUBLE_EQ(factors.computation().mean(), 1);
  EXPECT_FALSE(factors.computation().has_low());
  EXPECT_FALSE(factors.product().has_low());
  EXPECT_DOUBLE_EQ(factors.product().mean(), 1);
}

TEST(StepParts, TimesThatCannotBeAreNotUsed) {
  EXPECT_FALSE(PartsOf(Times({}, {}, {}), 0).has_value());
  EXPECT_FALSE(PartsOf(Times({1, 1}, {0.5, 1.5}, {0, 0}), 0).has_value())
      << "rank 1 waits longer than the step lasts";
  Results results;
  results.Cell(2).Ok({256, 256});
  EXPECT_THAT(results.Explained().series(0).points(0).factors().missing(),
              HasSubstr("no repeat has the times"));
  EXPECT_FALSE(results.Explained(false).series(0).points(0).has_factors());
}

TEST(StepParts, HiddenCommunicationNeedsNoOtherRuns) {
  // 0.2 s are exposed on average, of 0.5 s in which communication was in progress.
  db::RunTimes times = Times({1, 1}, {0.1, 0.3}, {0, 0});
  times.comm_total = 0.5;
  StepCell two{2, 32, {*PartsOf(times, 0)}};
  const ScalingFactors factors = MakeFactors(two, nullptr, CriticalValues(0.95));
  EXPECT_DOUBLE_EQ(factors.communication_seconds().mean(), 0.5);
  EXPECT_DOUBLE_EQ(factors.hidden().mean(), 0.6);
  EXPECT_FALSE(factors.has_computation());
}

}  // namespace
}  // namespace scalelab::analysis
