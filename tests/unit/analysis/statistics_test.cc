// Expected values are from published tables or calculated by hand.
#include "analysis/statistics.h"

#include <cmath>
#include <limits>
#include <random>

#include "analysis/bootstrap.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace scalelab::analysis {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Statistics, QuantilesOfStudentsTMatchTheTables) {
  EXPECT_NEAR(StudentQuantile(0.975, 1), 12.7062, 1e-4);
  EXPECT_NEAR(StudentQuantile(0.975, 2), 4.30265, 1e-5);
  EXPECT_NEAR(StudentQuantile(0.975, 4), 2.77645, 1e-5);
  EXPECT_NEAR(StudentQuantile(0.975, 9), 2.26216, 1e-5);
  EXPECT_NEAR(StudentQuantile(0.95, 30), 1.69726, 1e-5);
  EXPECT_NEAR(StudentQuantile(0.025, 4), -2.77645, 1e-5);
  EXPECT_NEAR(StudentQuantile(0.975, 1e7), 1.95996, 1e-5);
  EXPECT_NEAR(NormalQuantile(0.975), 1.959964, 1e-6);
  EXPECT_NEAR(StudentCdf(0, 3), 0.5, 1e-15);
}

TEST(Statistics, QuantilesOfTheStudentisedRangeMatchTheTables) {
  // Table of Pearson and Hartley, Biometrika Tables for Statisticians, upper 5% points.
  EXPECT_NEAR(StudentizedRangeQuantile(0.95, 2, 10), 3.151, 5e-4);
  EXPECT_NEAR(StudentizedRangeQuantile(0.95, 3, 10), 3.877, 5e-4);
  EXPECT_NEAR(StudentizedRangeQuantile(0.95, 6, 20), 4.445, 5e-4);
  EXPECT_NEAR(StudentizedRangeQuantile(0.95, 10, 5), 6.995, 5e-4);
  EXPECT_NEAR(StudentizedRangeCdf(StudentizedRangeQuantile(0.95, 4, 2.5), 4, 2.5), 0.95, 1e-12);
}

TEST(Statistics, TheTailOfFishersFMatchesTheTables) {
  EXPECT_NEAR(FisherTail(4.9646, 1, 10), 0.05, 1e-5);
  EXPECT_NEAR(FisherTail(3.3258, 5, 10), 0.05, 1e-5);
  EXPECT_EQ(FisherTail(0, 3, 10), 1);
}

TEST(Statistics, MomentsOfASmallSample) {
  const std::vector<double> values = {2, 4, 4, 4, 5, 5, 7, 9};
  EXPECT_DOUBLE_EQ(Mean(values), 5);
  EXPECT_DOUBLE_EQ(Median(values), 4.5);
  EXPECT_DOUBLE_EQ(Median({3, 1, 2}), 2);
  EXPECT_NEAR(StandardDeviation(values), std::sqrt(32.0 / 7), 1e-14);
  EXPECT_EQ(StandardDeviation({1}), 0);
  std::vector<float> numbers = {5, 1, 4, 2, 3};
  EXPECT_DOUBLE_EQ(Quantile(numbers, 0.5), 3);
  EXPECT_DOUBLE_EQ(Quantile(numbers, 0.25), 2);
  EXPECT_NEAR(Quantile(numbers, 0.1), 1.4, 1e-7);
  EXPECT_DOUBLE_EQ(Quantile(numbers, 1), 5);
}

TEST(Statistics, AMeanHasStudentsTInterval) {
  // 10, 12, 14: mean 12, deviation 2, half width 4.30265 * 2 / sqrt(3) = 4.96828.
  const auto estimate = EstimateMean({10, 12, 14}, CriticalValues(0.95), 0, kInfinity);
  EXPECT_DOUBLE_EQ(estimate.mean(), 12);
  EXPECT_DOUBLE_EQ(estimate.median(), 12);
  EXPECT_DOUBLE_EQ(estimate.stddev(), 2);
  EXPECT_NEAR(estimate.low(), 12 - 4.96828, 1e-4);
  EXPECT_NEAR(estimate.high(), 12 + 4.96828, 1e-4);
}

TEST(Statistics, AnIntervalIsCutToTheRangeOfTheQuantity) {
  const auto share = EstimateMean({0.2, 0.9}, CriticalValues(0.95), 0, 1);
  EXPECT_EQ(share.low(), 0);
  EXPECT_EQ(share.high(), 1);
  const auto odd = EstimateMean({-5, -6}, CriticalValues(0.95), 0, kInfinity);
  EXPECT_LT(odd.low(), odd.mean());
}

TEST(Statistics, OneValueHasNoSpread) {
  const auto estimate = EstimateMean({7}, CriticalValues(0.95), 0, kInfinity);
  EXPECT_EQ(estimate.mean(), 7);
  EXPECT_FALSE(estimate.has_stddev());
  EXPECT_FALSE(estimate.has_low());
}

TEST(Bootstrap, EffectsOfABlockCancel) {
  // The ratio is 2 in each block, although the blocks differ, so its interval has no width.
  for (int n : {2, 5, 12}) {
    Sample a, b;
    for (int i = 0; i < n; ++i) {
      a.block.push_back(i), b.block.push_back(i);
      b.value.push_back(100 + 13 * (i % 5)), a.value.push_back(2 * b.value.back());
    }
    const BlockBootstrap bootstrap(n, 1000, 0.95);
    const bool resampled = bootstrap.Resamples(n);
    EXPECT_EQ(resampled, n == 12);
    const auto interval = bootstrap.Ratio(a, b, resampled ? bootstrap.RelativeMeans(a) : std::vector<float>(),
                                          resampled ? bootstrap.RelativeMeans(b) : std::vector<float>());
    ASSERT_TRUE(interval.has_value());
    EXPECT_NEAR(interval->low, 2, 1e-5);
    EXPECT_NEAR(interval->high, 2, 1e-5);
  }
}

TEST(Bootstrap, FewBlocksHaveStudentsIntervalOfTheLogarithm) {
  // Baseline 100, 100; cell 190, 210. Influences +-0.05 / 2, variance 2 * 0.000625 * 2 / 1 = 0.0025,
  // deviation 0.05, half width 12.7062 * 0.05 = 0.63531.
  const auto interval =
      BlockBootstrap(2, 1000, 0.95).Ratio({{0, 1}, {190, 210}, {}}, {{0, 1}, {100, 100}, {}}, {}, {});
  ASSERT_TRUE(interval.has_value());
  EXPECT_NEAR(interval->low, 2 * std::exp(-0.63531), 1e-4);
  EXPECT_NEAR(interval->high, 2 * std::exp(0.63531), 1e-4);
  EXPECT_FALSE(
      BlockBootstrap(2, 1000, 0.95).Ratio({{0}, {190}, {}}, {{0, 1}, {100, 100}, {}}, {}, {}).has_value());
}

TEST(Bootstrap, TheDeltaMethodByHand) {
  // The logarithm of mean(a) / mean(b) changes by (a_i / mean(a) - b_i / mean(b)) / n with block i. For a = 190, 200, 210 and
  // b = 110, 100, 90 that is (-0.05 - 0.1) / 3, 0 and (0.05 + 0.1) / 3. The variance is the sum of squares x n / (n - 1) =
  // 2 x 0.05^2 x 1.5 = 0.0075, t(2) = 4.302653, so half the width is 4.302653 x 0.0866025 = 0.372621.
  const Sample a{{0, 1, 2}, {190, 200, 210}, {}};
  const BlockBootstrap bootstrap(3, 1000, 0.95);
  const auto apart = bootstrap.Ratio(a, {{0, 1, 2}, {110, 100, 90}, {}}, {}, {});
  ASSERT_TRUE(apart.has_value());
  EXPECT_NEAR(std::log(apart->low / 2), -0.372621, 1e-6);
  EXPECT_NEAR(std::log(apart->high / 2), 0.372621, 1e-6);
  // For b = 90, 100, 110 a part of the changes cancels: (-0.05 + 0.1) / 3, 0 and (0.05 - 0.1) / 3, a third of the above.
  const auto together = bootstrap.Ratio(a, {{0, 1, 2}, {90, 100, 110}, {}}, {}, {});
  ASSERT_TRUE(together.has_value());
  EXPECT_NEAR(std::log(together->low / 2), -0.124207, 1e-6);
  EXPECT_NEAR(std::log(together->high / 2), 0.124207, 1e-6);
}

TEST(Bootstrap, TheMemoryOfTheDrawsIsLimited) {
  EXPECT_TRUE(BlockBootstrap(BlockBootstrap::kMostDrawnFrom, 2000, 0.95).Resamples(20));
  EXPECT_FALSE(BlockBootstrap(BlockBootstrap::kMostDrawnFrom + 1, 2000, 0.95).Resamples(20));
}

TEST(Bootstrap, ManyBlocksGiveTheIntervalOfNormalTheory) {
  // 200 blocks of an alternating +-10%: deviation of the mean 0.1 / sqrt(199), t = 1.97196.
  Sample a, b;
  for (int i = 0; i < 200; ++i) {
    a.block.push_back(i), b.block.push_back(i);
    a.value.push_back(i % 2 == 0 ? 330 : 270), b.value.push_back(100);
  }
  const BlockBootstrap bootstrap(200, 4000, 0.95);
  const auto interval = bootstrap.Ratio(a, b, bootstrap.RelativeMeans(a), bootstrap.RelativeMeans(b));
  const double half = 1.97196 * 0.1 / std::sqrt(199.0);
  EXPECT_NEAR(interval->low, 3 * (1 - half), 3 * half * 0.06);
  EXPECT_NEAR(interval->high, 3 * (1 + half), 3 * half * 0.06);
}

// Up to 64 blocks are resampled, and more blocks are linearised. Both methods must agree at 64 blocks;
// otherwise one more block would change an interval abruptly.
TEST(Bootstrap, TheLinearisedIntervalAgreesWithTheResampledOneAtTheThreshold) {
  constexpr int kBlocks = static_cast<int>(BlockBootstrap::kMostResampled);
  const BlockBootstrap resampled(kBlocks, 2000, 0.95), linearised(kBlocks, 1, 0.95);
  ASSERT_TRUE(resampled.Resamples(kBlocks));
  ASSERT_FALSE(linearised.Resamples(kBlocks));
  std::mt19937_64 random(5);
  std::normal_distribution<double> normal;
  double log_ratios = 0;
  constexpr int kSamples = 40;
  for (int sample = 0; sample < kSamples; ++sample) {
    Sample a, b;
    for (int i = 0; i < kBlocks; ++i) {
      const double of_block = std::exp(0.1 * normal(random));
      a.block.push_back(i), b.block.push_back(i);
      a.value.push_back(700 * of_block * std::exp(0.05 * normal(random)));
      b.value.push_back(100 * of_block * std::exp(0.05 * normal(random)));
    }
    const auto by_draws = resampled.Ratio(a, b, resampled.RelativeMeans(a), resampled.RelativeMeans(b));
    const auto by_formula = linearised.Ratio(a, b, {}, {});
    ASSERT_TRUE(by_draws.has_value() && by_formula.has_value());
    const double ratio = Mean(a.value) / Mean(b.value);
    const double half = std::log(by_formula->high / by_formula->low) / 2;
    EXPECT_NEAR(std::log(by_draws->low / by_formula->low), 0, 0.1 * half) << "sample " << sample;
    EXPECT_NEAR(std::log(by_draws->high / by_formula->high), 0, 0.1 * half) << "sample " << sample;
    EXPECT_NEAR(std::log(by_formula->low * by_formula->high) / 2, std::log(ratio), 1e-9);
    log_ratios += std::log(by_draws->high / by_draws->low) / 2 / half / kSamples;
  }
  EXPECT_NEAR(log_ratios, 1, 0.03) << "mean of the half widths, relative to the formula";
}

TEST(Bootstrap, MissingBlocksAreLeftOutOfTheirMeans) {
  const BlockBootstrap bootstrap(10, 500, 0.95);
  const Sample all{{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, std::vector<double>(10, 5), {}};
  const Sample some{{0, 1, 2, 3, 4, 5, 6, 8}, std::vector<double>(8, 7), {}};
  for (float mean : bootstrap.RelativeMeans(all)) ASSERT_FLOAT_EQ(mean, 1);
  for (float mean : bootstrap.RelativeMeans(some)) ASSERT_FLOAT_EQ(mean, 1);
}

}  // namespace
}  // namespace scalelab::analysis
