#include "analysis/fits.h"

#include <cmath>

#include "gtest/gtest.h"
#include "tests/unit/analysis/fixture.h"

namespace scalelab::analysis {
namespace {

const std::vector<double> kRanks = {1, 2, 4, 8, 16};

std::vector<double> Amdahl(double s) {
  std::vector<double> out;
  for (double p : kRanks) out.push_back(1 / (s + (1 - s) / p));
  return out;
}
std::vector<double> Usl(double a, double b) {
  std::vector<double> out;
  for (double p : kRanks) out.push_back(p / (1 + a * (p - 1) + b * p * (p - 1)));
  return out;
}

TEST(Fits, FindTheParametersOfExactSpeedups) {
  for (double s : {0.0, 0.001, 0.05, 0.3, 1.0})
    EXPECT_NEAR(FitAmdahl(kRanks, Amdahl(s), 1).serial_fraction, s, 1e-9);
  for (double a : {0.0, 0.01, 0.2}) {
    for (double b : {0.0, 0.0005, 0.02}) {
      const UslFit fit = FitUsl(kRanks, Usl(a, b), 1);
      EXPECT_NEAR(fit.contention, a, 1e-8);
      EXPECT_NEAR(fit.coherency, b, 1e-8);
    }
  }
}

TEST(Fits, AreNotMisledByABaselineOfManyRanks) {
  std::vector<double> amdahl = Amdahl(0.05), usl = Usl(0.03, 0.001);
  const double at4 = amdahl[2], usl4 = usl[2];
  for (double& s : amdahl) s /= at4;
  for (double& s : usl) s /= usl4;
  EXPECT_NEAR(FitAmdahl(kRanks, amdahl, 4).serial_fraction, 0.05, 1e-9);
  EXPECT_NEAR(FitUsl(kRanks, usl, 4).contention, 0.03, 1e-8);
  EXPECT_NEAR(FitUsl(kRanks, usl, 4).coherency, 0.001, 1e-8);
}

TEST(Fits, SuperlinearSpeedupsGiveZeroNotLess) {
  EXPECT_EQ(FitAmdahl({1, 2, 4}, {1, 2.2, 4.8}, 1).serial_fraction, 0);
  const UslFit fit = FitUsl({1, 2, 4, 8}, {1, 2.2, 4.8, 10}, 1);
  EXPECT_EQ(fit.contention, 0);
  EXPECT_EQ(fit.coherency, 0);
}

TEST(Fits, LeastSquaresOnSpeedupsByHand) {
  // One free point: S(2) = 1.6 = 1 / (s + (1 - s) / 2), so s = 2 / 1.6 - 1 = 0.25.
  EXPECT_NEAR(FitAmdahl({1, 2}, {1, 1.6}, 1).serial_fraction, 0.25, 1e-9);
  // p / S = 1 + a (p - 1) + b p (p - 1): a + 2 b = 0.25 at 2, 3 a + 12 b = 1.5 at 4: a = 0, b = 0.125.
  const UslFit usl = FitUsl({1, 2, 4}, {1, 1.6, 1.6}, 1);
  EXPECT_NEAR(usl.contention, 0, 1e-9);
  EXPECT_NEAR(usl.coherency, 0.125, 1e-9);
}

TEST(Fits, AmdahlsLawOnTwoPointsByHand) {
  // y = p / S is 2 / 1.6 = 1.25 and 4 / 2.5 = 1.6, and the law is y = 1 + s (p - 1). With weights 1 / y^2 this is the least
  // squares line through 0 of r = 1 - 1 / y = 0.2 and 0.375 over a = (p - 1) / y = 0.8 and 1.875:
  // s = (0.8 x 0.2 + 1.875 x 0.375) / (0.8^2 + 1.875^2) = 0.863125 / 4.155625 = 0.2077004.
  EXPECT_NEAR(FitAmdahl({1, 2, 4}, {1, 1.6, 2.5}, 1).serial_fraction, 0.863125 / 4.155625, 1e-12);
}

TEST(Fits, TheTestOfLackOfFitByHand) {
  // Speedups of 1.6 and 2.5 in three blocks. The deviations of the logarithms are (d, -d, 0), (0, d, -d) and (-d, 0, d) with
  // d = 0.01. Their sums are 0 in each cell and each block, so they are the residuals: s^2 = 6 d^2 / 4 = 1.5 d^2, and a mean of
  // three values has the variance 0.5 d^2. nu = min(4, 3 x 2 / 2) = 3.
  // The fit is s = 0.2077004 (see above), so D(2) = 1.2077004 and D(4) = 1.6231012. The law has the speedups 2 / 1.2077004 =
  // 1.656040 and 4 / 1.6231012 = 2.464418; the logarithms of the points deviate by 0, -0.0344255 and 0.0143350.
  // The test fits the level (1, 1, 1) and the derivative of the law, (0, -1 / D(2), -3 / D(4)) = (0, -0.8280199, -1.8483136).
  // With equal weights only the part along their cross product v = (-1.0202936, 1.8483136, -0.8280199) is left:
  // v.deviation = -0.0636291 - 0.0118697 = -0.0754988, v.v = 5.1428791, F = (0.0754988^2 / 5.1428791) / (0.5 d^2) = 22.1668
  // with 3 - 2 = 1 and 3 degrees of freedom. sqrt(F) = 4.7082 lies between the points 4.541 (2%) and 5.841 (1%) of |t(3)|.
  const double up = std::exp(0.01), down = std::exp(-0.01);
  Results results;
  results.Cell(1).Ok({100 * up, 100 * down, 100});
  results.Cell(2).Ok({160, 160 * up, 160 * down});
  results.Cell(4).Ok({250 * down, 250, 250 * up});
  const auto curve = results.Curve();
  ASSERT_EQ(curve.series(0).fits_size(), 1);
  const auto& fit = curve.series(0).fits(0);
  EXPECT_NEAR(fit.parameters().at("serial_fraction").mean(), 0.2077004, 1e-7);
  EXPECT_EQ(fit.lack_of_fit().deviation_df(), 1);
  EXPECT_EQ(fit.lack_of_fit().noise_df(), 3);
  EXPECT_NEAR(fit.lack_of_fit().f(), 22.16683, 1e-4);
  EXPECT_NEAR(fit.lack_of_fit().p(), 0.0181353, 1e-6);
  EXPECT_TRUE(fit.lack_of_fit().rejected());
}

// A draw of blocks changes the parameters by one Gauss-Newton step. A new fit to each draw gives nearly the same interval.
TEST(Fits, TheStepOfADrawIsThatOfANewFit) {
  // docs/users/reading-a-curve-statistics.md has this example. S(4) increases by 1%.
  const double before = FitAmdahl({1, 2, 4}, {1, 1.6, 2.5}, 1).serial_fraction;
  const double squares = 0.8 * 0.8 + 1.875 * 1.875,
               step = -3 * (1 + 3 * before) * 0.01 / (1.6 * 1.6) / squares;
  EXPECT_NEAR(step, -0.004577, 1e-6);
  EXPECT_NEAR(FitAmdahl({1, 2, 4}, {1, 1.6, 2.525}, 1).serial_fraction, before + step, 5e-5);

  constexpr int kBlocks = 10;
  const std::vector<double> ranks = {1, 2, 4};
  std::vector<Sample> samples;
  for (const double p : ranks) {
    Sample& sample = samples.emplace_back();
    for (int block = 0; block < kBlocks; ++block) {
      sample.block.push_back(block);
      sample.value.push_back(100 / (0.2 + 0.8 / p) * (1 + 0.01 * std::sin(37.0 * block + 5 * p)));
    }
  }
  const BlockBootstrap bootstrap(kBlocks, 2000, 0.95);
  CellRatios ratios({&samples[0], &samples[1], &samples[2]}, bootstrap);
  const auto fits = FitLaws(ranks, {0, 1, 2}, 0, ratios);
  const auto& shown = fits.at(0).parameters().at("serial_fraction");
  std::vector<std::vector<float>> means;
  for (const Sample& sample : samples) means.push_back(bootstrap.RelativeMeans(sample));
  std::vector<float> drawn;
  for (size_t r = 0; r < means[0].size(); ++r) {
    std::vector<double> speedups;
    for (size_t i = 0; i < samples.size(); ++i)
      speedups.push_back(Mean(samples[i].value) * means[i][r] / (Mean(samples[0].value) * means[0][r]));
    drawn.push_back(static_cast<float>(FitAmdahl(ranks, speedups, 1).serial_fraction));
  }
  const double factor = bootstrap.Widening(kBlocks), half = (shown.high() - shown.low()) / 2;
  EXPECT_NEAR(shown.low(), shown.mean() + factor * (Quantile(drawn, 0.025) - shown.mean()), 0.03 * half);
  EXPECT_NEAR(shown.high(), shown.mean() + factor * (Quantile(drawn, 0.975) - shown.mean()), 0.03 * half);
}

Results Study(int n, const std::string& spec = "{}") {
  Results results(spec);
  for (double p : kRanks) {
    std::vector<double> values;
    for (int i = 0; i < n; ++i) {
      values.push_back(100 / (0.05 + 0.95 / p) * (1 + 0.01 * std::sin(37.0 * i + 5 * p)) *
                       (1 + 0.1 * (i % 3)));
    }
    results.Cell(static_cast<int>(p)).Ok(values);
  }
  return results;
}

TEST(Fits, OfACurveCarryIntervalsAroundTheTruth) {
  for (int n : {2, 5, 10, 600}) {
    SCOPED_TRACE(n);
    const auto curve = Study(n).Curve();
    ASSERT_EQ(curve.series(0).fits_size(), 2);
    EXPECT_EQ(curve.series(0).fits(0).law(), "amdahl");
    const auto& serial = curve.series(0).fits(0).parameters().at("serial_fraction");
    EXPECT_NEAR(serial.mean(), 0.05, 0.01);
    EXPECT_LT(serial.low(), 0.0505);
    EXPECT_GT(serial.high(), 0.0495);
    EXPECT_LE(serial.low(), serial.mean());
    EXPECT_GE(serial.high(), serial.mean());
    EXPECT_EQ(curve.series(0).fits(1).law(), "usl");
    EXPECT_GE(curve.series(0).fits(1).parameters().at("coherency").low(), 0);
    EXPECT_NEAR(curve.series(0).fits(1).parameters().at("contention").mean(), 0.05, 0.02);
  }
}

TEST(Fits, OfSingleRepeatsHaveNoIntervals) {
  const auto curve = Study(1).Curve();
  EXPECT_FALSE(curve.series(0).fits(0).parameters().at("serial_fraction").has_low());
}

TEST(Fits, NeedThreeRanksForAmdahlAndFourForUsl) {
  Results results;
  results.Cell(1).Ok({100}).Cell(2).Ok({190});
  EXPECT_EQ(results.Curve().series(0).fits_size(), 0);
  results.Cell(4).Ok({350});
  ASSERT_EQ(results.Curve().series(0).fits_size(), 1);
  results.Cell(8).Other(db::RunState::kFailed);  // without a result it is no point of a fit
  ASSERT_EQ(results.Curve().series(0).fits_size(), 1);
  EXPECT_EQ(results.Curve().series(0).fits(0).law(), "amdahl");
}

TEST(Fits, AreNotMadeOfWeakScaling) {
  EXPECT_EQ(Study(3, R"({"scaling":{"mode":"WEAK"}})").Curve().series(0).fits_size(), 0);
}

}  // namespace
}  // namespace scalelab::analysis
