#include "analysis/factors/gradient_noise.h"

#include <cmath>
#include <random>

#include "analysis/bootstrap.h"
#include "analysis/factors/log_estimate.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/analysis/fixture.h"

namespace scalelab::analysis {
namespace {

using ::testing::HasSubstr;

TEST(GradientNoise, TheExampleInTheDocumentation) {
  // |G|^2 = 2 and tr(S) = 512: a rank of 64 samples has 2 + 512 / 64 = 10, the mean of 4 ranks 2 + 512 / 256 = 4.
  scalelab::v1::Estimate throughput;
  throughput.set_mean(1000);
  const auto noise = MakeGradientNoise(4, 256, {{10, 4}}, &throughput, CriticalValues(0.95));
  EXPECT_DOUBLE_EQ(noise.critical_batch().mean(), 256);
  EXPECT_FALSE(noise.critical_batch().has_low());
  EXPECT_DOUBLE_EQ(noise.statistical_efficiency().mean(), 0.5);
  EXPECT_DOUBLE_EQ(noise.goodput().mean(), 500);
  EXPECT_EQ(noise.n(), 1);
  EXPECT_EQ(noise.missing(), "");
}

TEST(GradientNoise, BothPartsAreAveragedBeforeTheyAreDivided) {
  // Two repeats have |G|^2 of 1 and 3. With tr(S) of 256 and 768, each would have a noise scale of 256. With
  // 384 and 640, the ratios of the repeats differ, but the ratio of the means is the same.
  const auto norms = [](double square, double trace) {
    return GradientNorms{square + trace / 64, square + trace / 256};
  };
  const auto noise =
      MakeGradientNoise(4, 256, {norms(1.9, 384), norms(2.1, 640)}, nullptr, CriticalValues(0.95));
  ASSERT_EQ(noise.missing(), "");
  EXPECT_NEAR(noise.critical_batch().mean(), 512 / 2.0, 1e-9);
  EXPECT_LE(noise.critical_batch().low(), 256);
  EXPECT_GE(noise.critical_batch().high(), 256);
  EXPECT_FALSE(noise.has_goodput());
}

TEST(GradientNoise, GradientsThatAreOnlyNoiseHaveNoEstimate) {
  const auto noise = MakeGradientNoise(4, 256, {{8, 1.9}}, nullptr, CriticalValues(0.95));
  EXPECT_FALSE(noise.has_critical_batch());
  EXPECT_THAT(noise.missing(), HasSubstr("too noisy"));
  EXPECT_THAT(MakeGradientNoise(1, 256, {{8, 8}}, nullptr, CriticalValues(0.95)).missing(),
              HasSubstr("one rank"));
}

TEST(GradientNoise, FindsTheNoiseOfSimulatedGradients) {
  // Gradients in 50 dimensions: the mean has norm^2 2, each sample a variance of 8 in each dimension, so the scale is 200.
  std::mt19937_64 random(3);
  std::normal_distribution<double> normal;
  constexpr int kDimensions = 50, kRanks = 4, kBatch = 32, kSteps = 4000;
  double of_rank = 0, of_mean = 0;
  for (int step = 0; step < kSteps; ++step) {
    for (int d = 0; d < kDimensions; ++d) {
      double sum = 0;
      for (int rank = 0; rank < kRanks; ++rank) {
        const double g = std::sqrt(2.0 / kDimensions) + std::sqrt(8.0 / kBatch) * normal(random);
        of_rank += g * g / (kRanks * kSteps);
        sum += g / kRanks;
      }
      of_mean += sum * sum / kSteps;
    }
  }
  const auto noise =
      MakeGradientNoise(kRanks, kRanks * kBatch, {{of_rank, of_mean}}, nullptr, CriticalValues(0.95));
  EXPECT_NEAR(noise.critical_batch().mean(), 200, 10);
}

TEST(GradientNoise, ACurveHasTheGoodputOfPointsWithNorms) {
  Results results;
  db::RunTimes times;
  times.rank_norm = 10;
  times.mean_norm = 4;
  results.Cell(4).Ok({1000}).Times(times);
  results.Cell(8).Ok({1500});
  const auto curve = results.Explained();
  EXPECT_DOUBLE_EQ(curve.series(0).points(0).gradient_noise().goodput().mean(), 500);
  EXPECT_FALSE(curve.series(0).points(1).has_gradient_noise());
}

TEST(FiellerInterval, ByHand) {
  // Numerators 4.2, 3.8, 4.0 and denominators 1.9, 2.0, 2.1: means 4 and 2, sums of squares and products 0.08, -0.02, 0.02;
  // divided by n (n - 1) = 6, they are the variances and the covariance of the means. t(2) = 4.302653, t^2 = 18.51282. The
  // ends are the roots r of (4 - 2 r)^2 = t^2 (0.08 + 2 x 0.02 r + 0.02 r^2) / 6, that is of
  //   3.938291 r^2 - 2 x 8.061709 r + 15.753162 = 0,  r = (8.061709 +- 1.717739) / 3.938291.
  const std::vector<double> numerator = {4.2, 3.8, 4.0}, denominator = {1.9, 2.0, 2.1};
  const auto interval = FiellerInterval(numerator, denominator, CriticalValues(0.95));
  ASSERT_TRUE(interval.has_value());
  EXPECT_NEAR(interval->low, 1.610844, 1e-6);
  EXPECT_NEAR(interval->high, 2.483171, 1e-6);
  // The hidden share of communication has the same interval, from the differences to a third cell.
  Sample a{{0, 1, 2}, numerator, {}}, b{{0, 1, 2}, denominator, {}};
  const Sample c{{0, 1, 2}, {1, 2, 3}, {}};
  for (size_t i = 0; i < 3; ++i) a.value[i] += c.value[i], b.value[i] += c.value[i];
  const auto of_differences = BlockBootstrap(3, 1000, 0.95).RatioOfDifferences(a, b, c);
  ASSERT_TRUE(of_differences.has_value());
  EXPECT_NEAR(of_differences->low, 1.610844, 1e-6);
  EXPECT_NEAR(of_differences->high, 2.483171, 1e-6);
}

TEST(FiellerInterval, IsThatOfTheMeanWhereTheDenominatorIsExact) {
  const auto interval = FiellerInterval({4, 6}, {2, 2}, CriticalValues(0.95));
  ASSERT_TRUE(interval.has_value());
  EXPECT_NEAR(interval->low, (5 - 12.7062047 * std::sqrt(2.0) / std::sqrt(2.0)) / 2, 1e-6);
  EXPECT_NEAR(interval->high, (5 + 12.7062047) / 2, 1e-6);
  EXPECT_FALSE(FiellerInterval({4, 6}, {-1, 1}, CriticalValues(0.95)).has_value())
      << "the denominator may be 0";
  EXPECT_FALSE(FiellerInterval({4}, {2}, CriticalValues(0.95)).has_value());
}

}  // namespace
}  // namespace scalelab::analysis
