#include "analysis/comparison/compare.h"

#include <cmath>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/analysis/fixture.h"
#include "tests/unit/analysis/simulated_study.h"

namespace scalelab::analysis {
namespace {

using scalelab::v1::ComparedPair;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kA[] = R"({"engine":"a"})", kB[] = R"({"engine":"b"})", kC[] = R"({"engine":"c"})";

TEST(Compare, APairIsThatOfAPairedTTest) {
  Results results;
  results.Cell(2, kA).Ok({110, 121, 132}).Cell(2, kB).Ok({100, 110, 121});
  const auto response = results.Compare({&results}, "", 0);
  ASSERT_EQ(response.groups_size(), 1);
  const auto& group = response.groups(0);
  EXPECT_EQ(group.ranks(), 2);
  ASSERT_EQ(group.pairs_size(), 1);
  const ComparedPair& pair = group.pairs(0);
  EXPECT_EQ(pair.first(), "a");
  EXPECT_EQ(pair.second(), "b");
  EXPECT_EQ(pair.n(), 3);
  // Logarithms: 0.095310, 0.095310, 0.087011; mean 0.092544, deviation 0.0047913, half width 4.30265 x that / sqrt(3).
  EXPECT_NEAR(pair.effect().mean(), std::expm1(0.092544), 1e-5);
  EXPECT_NEAR(pair.effect().low(), std::expm1(0.092544 - 0.011902), 1e-5);
  EXPECT_NEAR(pair.effect().high(), std::expm1(0.092544 + 0.011902), 1e-5);
  EXPECT_EQ(pair.verdict(), ComparedPair::FASTER);
}

TEST(Compare, ThreeEnginesHaveTukeysIntervals) {
  const double d = 0.01;
  Results results;
  results.Cell(1, kA).Ok({std::exp(d), std::exp(-d), 1}).Cell(1, kB).Ok({std::exp(-d), std::exp(d), 1});
  results.Cell(1, kC).Ok({1, 1, 1});
  const auto response = results.Compare({&results}, "engine", 0);
  const auto& group = response.groups(0);
  ASSERT_EQ(group.pairs_size(), 3);
  // nu = 3 (3 - 1) / 2 = 3: q(0.95; 3, 3) = 5.9096. The variance of a - c within blocks is d^2, less than 2 s^2 = 2 d^2.
  EXPECT_EQ(group.pairs(1).second(), "c");
  EXPECT_NEAR(std::log1p(group.pairs(1).effect().high()), 5.9096 / std::sqrt(2.0) * d * std::sqrt(2.0 / 3),
              2e-6);
  EXPECT_EQ(group.pairs(1).verdict(), ComparedPair::UNDECIDED);
}

TEST(Compare, AllPairsOfEqualEnginesTogetherAreSeldomDifferent) {
  Truth truth;
  truth.ranks = {8};
  truth.engines = 6;
  std::mt19937_64 random(5);
  int wrong = 0, wrong_each = 0;
  constexpr int kStudies = 300;
  for (int study = 0; study < kStudies; ++study) {
    const Results results = Simulate(truth, {.name = "", .run = 0.02}, 5, random);
    const auto response = Results::Compare({&results}, "engine", 0);
    bool any = false, any_each = false;
    for (const ComparedPair& pair : response.groups(0).pairs()) {
      any = any || pair.verdict() != ComparedPair::UNDECIDED;
      // An interval of each pair: t(12) / (q(6, 12) / sqrt(2)) = 2.179 / 3.359 of Tukey's.
      const double g = std::log1p(pair.effect().mean()), half = std::log1p(pair.effect().high()) - g;
      any_each = any_each || std::abs(g) > half * 2.179 / 3.359;
    }
    wrong += any;
    wrong_each += any_each;
  }
  EXPECT_LE(wrong, kStudies * 0.08);
  EXPECT_GE(wrong_each, kStudies * 0.2) << "the correction is needed";
}

TEST(Compare, EquivalenceIsShownNotAssumed) {
  const auto verdict = [](double noise, double gain) {
    Truth truth;
    truth.ranks = {1, 2};
    truth.engines = 2;
    truth.engine_gain = gain;
    std::mt19937_64 random(6);
    const Results results = Simulate(truth, {.name = "", .run = noise}, 5, random);
    return Results::Compare({&results}, "engine", 0.02).groups(0).pairs(0).verdict();
  };
  EXPECT_EQ(verdict(0.001, 0), ComparedPair::EQUIVALENT);
  EXPECT_EQ(verdict(0.001, 0.005), ComparedPair::EQUIVALENT) << "a real difference that does not matter";
  EXPECT_EQ(verdict(0.05, 0), ComparedPair::UNDECIDED)
      << "no difference was found, but one of 2% could exist";
  EXPECT_EQ(verdict(0.001, 0.1), ComparedPair::SLOWER);
}

TEST(Compare, MoreThanAHundredValuesAreRefused) {
  const auto compare = [](int values) {
    Results results;
    for (int i = 0; i < values; ++i) results.Cell(1, R"({"seed":)" + std::to_string(i) + "}").Ok({100});
    return Results::TryCompare({&results}, "seed", 0, [] { return false; });
  };
  EXPECT_EQ(compare(100).value().groups(0).pairs_size(), 4950);
  const absl::Status refused = compare(101).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr(R"(axis "seed" has 101 values)"));
}

TEST(Compare, ManyValuesAreComparedInOrder) {
  constexpr int kValues = 60;  // enough for several threads
  const auto name = [](int i) {
    return std::string(1, static_cast<char>('0' + i / 10)) + std::to_string(i % 10);
  };
  Results results;
  for (int i = 0; i < kValues; ++i)
    results.Cell(1, R"({"engine":")" + name(i) + "\"}").Ok({100.0 + i, 101.0 + i, 102.0 + i});
  const auto response = results.Compare({&results}, "engine", 0);
  const auto& pairs = response.groups(0).pairs();
  ASSERT_EQ(pairs.size(), kValues * (kValues - 1) / 2);
  for (int i = 0, at = 0; i < kValues; ++i) {
    for (int j = i + 1; j < kValues; ++j, ++at) {
      EXPECT_EQ(pairs[at].first(), name(i));
      EXPECT_EQ(pairs[at].second(), name(j));
      EXPECT_NEAR(pairs[at].effect().mean(), (101.0 + i) / (101.0 + j) - 1, 1e-4);
      EXPECT_EQ(pairs[at].n(), 3);
    }
  }
}

TEST(Compare, AComparisonForWhichNobodyWaitsEnds) {
  Results results;
  results.Cell(1, kA).Ok({100, 101}).Cell(1, kB).Ok({90, 91});
  for (const char* axis : {"engine", "study"}) {
    const auto compared = Results::TryCompare({&results, &results}, axis, 0, [] { return true; });
    EXPECT_EQ(compared.status().code(), absl::StatusCode::kCancelled) << axis;
  }
}

TEST(Compare, OtherHardwareIsNeverCompared) {
  Results results;
  results.Cell(1, kA).Ok({100, 101}).Cell(1, kB).Ok({90, 91}, "v100");
  const auto response = results.Compare({&results}, "engine", 0);
  EXPECT_EQ(response.groups_size(), 0);
  EXPECT_THAT(response.notes(), Contains(HasSubstr("nothing to compare")));
  EXPECT_THAT(response.notes(), Contains(HasSubstr("2 kinds of hardware")));
}

TEST(Compare, RunsOfACellThatAlternateBetweenMachinesAreComparedOnEach) {
  Results results;
  for (const char* engine : {kA, kB}) {
    results.Cell(1, engine);
    for (int i = 0; i < 3; ++i)
      results.Ok({engine == kA ? 110.0 : 100.0}, "a100").Ok({engine == kA ? 80.0 : 100.0}, "v100");
  }
  const auto response = results.Compare({&results}, "engine", 0);
  ASSERT_EQ(response.groups_size(), 2);
  for (const auto& group : response.groups()) {
    ASSERT_EQ(group.pairs_size(), 1);
    EXPECT_EQ(group.pairs(0).n(), 3);
    EXPECT_NEAR(group.pairs(0).effect().mean(), group.fingerprint() == "a100" ? 0.1 : -0.2, 1e-9);
  }
}

// Engine a was measured on both days, b on the first and c on the second only. The second day is 10% slower.
TEST(Compare, CellsThatBothStudiesHaveConnectTheirDays) {
  Results first, second;
  first.Cell(1, kA).Ok({100, 101, 99}).Cell(2, kA).Ok({190, 191, 189}).Cell(1, kB).Ok({80, 81, 79});
  second.Cell(1, kA).Ok({90, 91, 89}).Cell(2, kA).Ok({171.5, 172, 171}).Cell(1, kC).Ok({90, 91, 89});
  const auto response = Results::Compare({&first, &second}, "engine", 0);
  const ComparedPair* found = nullptr;
  for (const auto& group : response.groups()) {
    for (const auto& pair : group.pairs()) {
      if (pair.first() == "b" && pair.second() == "c") found = &pair;
    }
  }
  ASSERT_NE(found, nullptr);
  EXPECT_NEAR(found->effect().mean(), 80.0 / 100 - 1, 0.005) << "not 80 / 90 - 1";
  EXPECT_EQ(found->n(), 0);
  // There is one degree of freedom: the difference between the day's effects on two cells.
  ASSERT_TRUE(found->effect().has_low());
  EXPECT_LT(found->effect().low(), found->effect().mean() - 0.01) << "wider than the noise within a day";
  EXPECT_THAT(response.notes(), Contains(HasSubstr("difference between days")));
}

TEST(Compare, ParametersInWhichCombinedCellsDifferAreNamed) {
  const auto study = [](const std::string& model, const std::string& fingerprint = "a100") {
    const std::string more = ",\"precision\":\"fp32\",\"seed\":\"1\",\"model\":\"" + model + "\"";
    Results results;
    results.Engine("a", 1, more).Ok({100, 101}, fingerprint).Engine("b", 1, more).Ok({80, 81}, fingerprint);
    return results;
  };
  const Results small = study("resnet20"), large = study("resnet50"), other = study("vgg16", "v100");
  const auto two = Results::Compare({&small, &large}, "engine", 0);
  EXPECT_THAT(two.notes(), Contains("the studies differ in model: resnet20 (study 1), resnet50 (study 2)"));
  EXPECT_THAT(two.notes(), Not(Contains(HasSubstr("differ in precision"))));
  const auto three = Results::Compare({&small, &small, &large}, "engine", 0);
  EXPECT_THAT(
      three.notes(),
      Contains("the studies differ in model: resnet20 (study 1), resnet20 (study 2), resnet50 (study 3)"));
  EXPECT_THAT(Results::Compare({&small, &small}, "engine", 0).notes(), Not(Contains(HasSubstr("differ in"))));
  EXPECT_THAT(Results::Compare({&small, &other}, "engine", 0).notes(), Not(Contains(HasSubstr("differ in"))))
      << "results on different hardware are not combined";
}

TEST(Compare, ParametersOfCellsThatAreNotCombinedMayDiffer) {
  Results small, large;
  small.Engine("a", 1, R"(,"model":"resnet20")").Ok({100, 101});
  small.Engine("b", 1, R"(,"model":"resnet20")").Ok({80, 81});
  large.Engine("a", 2, R"(,"model":"resnet50")").Ok({100, 101});
  large.Engine("b", 2, R"(,"model":"resnet50")").Ok({80, 81});
  EXPECT_THAT(Results::Compare({&small, &large}, "engine", 0).notes(), Not(Contains(HasSubstr("differ in"))));
}

// Engine a has 5% more throughput. The day of a study changes all of its cells, and each cell has noise of its own on
// each day, besides that of its repeats. One study lacks a cell.
TEST(Compare, IntervalsOverSeveralStudiesContainTheTruthInAbout95Percent) {
  constexpr int kSimulated = 500, kStudies = 4, kRepeats = 3;
  constexpr double kEffect = 0.05;
  std::mt19937_64 random(17);
  std::normal_distribution<double> day(0, 0.05), cell(0, 0.015), repeat(0, 0.02);
  int pairs = 0, covered = 0;
  for (int i = 0; i < kSimulated; ++i) {
    std::vector<Results> studies(kStudies);
    for (int s = 0; s < kStudies; ++s) {
      const double of_day = day(random);
      for (const int ranks : {1, 4}) {
        for (const char* engine : {kA, kB}) {
          if (s == 0 && ranks == 4 && engine == kB) continue;
          const double right = 100 * ranks * (engine == kA ? 1 + kEffect : 1);
          const double of_cell = of_day + cell(random);
          std::vector<double> values;
          for (int r = 0; r < kRepeats; ++r) values.push_back(right * std::exp(of_cell + repeat(random)));
          studies[static_cast<size_t>(s)].Cell(ranks, engine).Ok(values);
        }
      }
    }
    std::vector<const Results*> compared;
    for (const Results& study : studies) compared.push_back(&study);
    const auto response = Results::Compare(compared, "engine", 0);
    ASSERT_EQ(response.groups_size(), 2);
    for (const auto& group : response.groups()) {
      ASSERT_EQ(group.pairs_size(), 1);
      const ComparedPair& pair = group.pairs(0);
      ASSERT_EQ(pair.first(), "a");
      ASSERT_EQ(pair.n(), group.ranks() == 4 ? kStudies - 1 : kStudies);
      ASSERT_TRUE(pair.effect().has_low());
      ++pairs;
      if (pair.effect().low() <= kEffect && kEffect <= pair.effect().high()) ++covered;
    }
  }
  const double share = static_cast<double>(covered) / pairs;
  EXPECT_GE(share, 0.93);
  EXPECT_LE(share, 0.99);
}

}  // namespace
}  // namespace scalelab::analysis
