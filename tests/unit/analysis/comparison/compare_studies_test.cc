#include "analysis/comparison/compare_studies.h"

#include <cmath>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/analysis/fixture.h"

namespace scalelab::analysis {
namespace {

using scalelab::v1::ComparedPair;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kA[] = R"({"engine":"a"})", kB[] = R"({"engine":"b"})";

TEST(CompareStudies, TheIntervalIsThatOfWelchsTest) {
  Results first, second;
  first.Cell(2).Ok({110, 121, 132, 118});
  second.Cell(2).Ok({100, 104, 96});
  const auto response = Results::Compare({&first, &second}, "study", 0);
  ASSERT_EQ(response.groups_size(), 1);
  ASSERT_EQ(response.groups(0).pairs_size(), 1);
  const ComparedPair& pair = response.groups(0).pairs(0);
  EXPECT_EQ(pair.first(), "study 1");
  EXPECT_EQ(pair.second(), "study 2");
  EXPECT_EQ(pair.first_repeats(), 4);
  EXPECT_EQ(pair.second_repeats(), 3);
  EXPECT_NEAR(pair.first_throughput().mean(), 120.25, 1e-9);
  // scipy.stats.ttest_ind(log a, log b, equal_var=False).confidence_interval()
  EXPECT_NEAR(std::log1p(pair.effect().mean()), 0.18280294, 1e-6);
  EXPECT_NEAR(std::log1p(pair.effect().low()), 0.06694596, 1e-6);
  EXPECT_NEAR(std::log1p(pair.effect().high()), 0.29865992, 1e-6);
  EXPECT_EQ(pair.verdict(), ComparedPair::FASTER);
}

TEST(CompareStudies, WelchsIntervalByHand) {
  // Logarithms relative to log 110: +-d, d = 0.01. Variance 2 d^2, that of the mean d^2, 1 degree of freedom.
  // Relative to log 100: 0 and +-e, e^2 = 6 d^2. Variance 6 d^2, that of the mean 2 d^2, 2 degrees of freedom.
  // Standard error sqrt(3) d = 0.0173205; (1 + 2)^2 / (1^2 / 1 + 2^2 / 2) = 3 degrees of freedom, t = 3.182446: half the width
  // is 0.0551216. With pooled variances the error would be sqrt((2 + 12) / 3 x (1 / 2 + 1 / 3)) d = 0.0197203.
  const double d = 0.01, e = 0.01 * std::sqrt(6.0);
  Results first, second;
  first.Cell(2).Ok({110 * std::exp(d), 110 * std::exp(-d)});
  second.Cell(2).Ok({100, 100 * std::exp(e), 100 * std::exp(-e)});
  const auto response = Results::Compare({&first, &second}, "study", 0);
  const auto& effect = response.groups(0).pairs(0).effect();
  EXPECT_NEAR(effect.mean(), 0.1, 1e-12);
  EXPECT_NEAR(std::log1p(effect.low()), std::log(1.1) - 0.0551216, 1e-6);
  EXPECT_NEAR(std::log1p(effect.high()), std::log(1.1) + 0.0551216, 1e-6);
}

TEST(CompareStudies, TheIntervalOfGamesAndHowellByHand) {
  // Logarithms of four repeats: relative to log 100 +-d twice, d = 0.01, so the variance of the mean is 4 d^2 / 3 / 4 = d^2 / 3;
  // relative to log 110 +-2 d twice: 4 d^2 / 3. Standard error sqrt(5 / 3) d = 0.0129099; (1 + 4)^2 / (1^2 / 3 + 4^2 / 3) = 4.41
  // degrees of freedom, rounded down to 4. The table of the studentised range has q(0.95; 3, 4) = 5.0402: half the width is
  // 5.0402 / sqrt(2) x 0.0129099 = 0.046011.
  const auto study = [](double mean, double deviation) {
    const double up = mean * std::exp(deviation), down = mean * std::exp(-deviation);
    Results results;
    results.Cell(1).Ok({up, down, up, down});
    return results;
  };
  const Results a = study(100, 0.01), b = study(110, 0.02), c = study(200, 0.01);
  const auto response = Results::Compare({&a, &b, &c}, "study", 0);
  ASSERT_EQ(response.groups(0).pairs_size(), 3);
  const ComparedPair& pair = response.groups(0).pairs(0);
  EXPECT_EQ(pair.second(), "study 2");
  EXPECT_NEAR(std::log1p(pair.effect().low()), std::log(100 / 110.0) - 0.046011, 1e-6);
  EXPECT_NEAR(std::log1p(pair.effect().high()), std::log(100 / 110.0) + 0.046011, 1e-6);
  EXPECT_EQ(pair.verdict(), ComparedPair::SLOWER);
}

TEST(CompareStudies, ThreeStudiesHaveTheIntervalsOfGamesAndHowell) {
  Results a, b, c;
  a.Cell(1).Ok({100, 102, 98, 101});
  b.Cell(1).Ok({100, 103, 99, 97});
  c.Cell(1).Ok({109, 111, 113, 110});
  const auto response = Results::Compare({&a, &b, &c}, "study", 0);
  ASSERT_EQ(response.groups(0).pairs_size(), 3);
  const auto two = Results::Compare({&a, &c}, "study", 0).groups(0).pairs(0);
  const auto& three = response.groups(0).pairs(1);
  EXPECT_EQ(three.second(), "study 3");
  EXPECT_DOUBLE_EQ(three.effect().mean(), two.effect().mean());
  EXPECT_LT(three.effect().low(), two.effect().low());
  EXPECT_GT(three.effect().high(), two.effect().high());
}

TEST(CompareStudies, AnAxisWithOneValueInEachStudyDoesNotSeparateThem) {
  Results a, b;
  a.Cell(1, kA).Ok({100, 101}).Cell(2, kA).Ok({190, 191});
  b.Cell(1, kB).Ok({110, 111}).Cell(4, kB).Ok({400, 401});
  const auto response = Results::Compare({&a, &b}, "study", 0);
  ASSERT_EQ(response.groups_size(), 1);
  EXPECT_EQ(response.groups(0).ranks(), 1);
  EXPECT_TRUE(response.groups(0).key().fields().empty());
  EXPECT_THAT(response.notes(),
              Contains(HasSubstr("the studies differ in engine: a (study 1), b (study 2)")));
}

TEST(CompareStudies, CellsAreComparedAtEqualValuesOfTheAxes) {
  Results both, one;
  both.Cell(1, kA).Ok({100, 101}).Cell(1, kB).Ok({200, 201});
  one.Cell(1, kB).Ok({100, 101});
  const auto response = Results::Compare({&both, &one}, "study", 0);
  ASSERT_EQ(response.groups_size(), 1);
  EXPECT_EQ(response.groups(0).key().fields().at("engine").string_value(), "b");
  EXPECT_NEAR(response.groups(0).pairs(0).effect().mean(), 1, 0.01);
  EXPECT_THAT(response.notes(), Not(Contains(HasSubstr("differ in engine"))));
}

TEST(CompareStudies, AnAxisOfOneStudyEqualsTheFixedParameterOfAnother) {
  Results matrix, fixed;
  matrix.Cell(1, R"({"max_steps":100})").Ok({100, 101}).Cell(1, R"({"max_steps":200})").Ok({110, 111});
  fixed.Engine("native/ddp", 1, R"(,"max_steps":"200")").Ok({100, 101});
  const auto response = Results::Compare({&matrix, &fixed}, "study", 0);
  ASSERT_EQ(response.groups_size(), 1);
  EXPECT_EQ(response.groups(0).key().fields().at("max_steps").number_value(), 200);
  EXPECT_EQ(response.groups(0).pairs_size(), 1);
}

TEST(CompareStudies, DifferentHardwareIsComparedWithANote) {
  Results a, b;
  a.Cell(1).Ok({100, 101}, "aaaaaaaaaa");
  b.Cell(1).Ok({110, 111}, "bbbbbbbbbb");
  const auto response = Results::Compare({&a, &b}, "study", 0);
  ASSERT_EQ(response.groups(0).pairs_size(), 1);
  EXPECT_EQ(response.groups(0).fingerprint(), "");
  EXPECT_THAT(response.groups(0).notes(), Contains(HasSubstr("aaaaaaa (study 1), bbbbbbb (study 2)")));
}

TEST(CompareStudies, OneRepeatHasNoInterval) {
  Results a, b;
  a.Cell(1).Ok({100});
  b.Cell(1).Ok({110, 111});
  const auto response = Results::Compare({&a, &b}, "study", 0.05);
  const ComparedPair& pair = response.groups(0).pairs(0);
  EXPECT_FALSE(pair.effect().has_low());
  EXPECT_FALSE(pair.has_equivalence_p());
  EXPECT_EQ(pair.verdict(), ComparedPair::UNDECIDED);
  EXPECT_THAT(response.groups(0).notes(), Contains(HasSubstr("no interval")));
}

TEST(CompareStudies, StudiesWithoutCommonCellsAreNotCompared) {
  Results a, b;
  a.Cell(1).Ok({100, 101});
  b.Cell(2).Ok({100, 101});
  const auto response = Results::Compare({&a, &b}, "study", 0);
  EXPECT_EQ(response.groups_size(), 0);
  EXPECT_THAT(response.notes(), Contains(HasSubstr("nothing to compare")));
}

TEST(CompareStudies, IntervalsOfEqualStudiesContainZeroAsOftenAsTheySay) {
  std::mt19937_64 random(11);
  std::normal_distribution<double> noise(0, 0.02);
  int wrong = 0;
  constexpr int kPairs = 2000;
  for (int i = 0; i < kPairs; ++i) {
    const auto sample = [&](int n, double scale) {
      std::vector<double> values;
      for (int k = 0; k < n; ++k) values.push_back(100 * std::exp(scale * noise(random)));
      return values;
    };
    Results a, b;
    a.Cell(1).Ok(sample(4, 1));
    b.Cell(1).Ok(sample(7, 3));
    const auto response = Results::Compare({&a, &b}, "study", 0);
    if (response.groups(0).pairs(0).verdict() != ComparedPair::UNDECIDED) ++wrong;
  }
  EXPECT_NEAR(wrong / static_cast<double>(kPairs), 0.05, 0.015);
}

}  // namespace
}  // namespace scalelab::analysis
