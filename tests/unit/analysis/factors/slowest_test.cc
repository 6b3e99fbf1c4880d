#include "analysis/factors/slowest.h"

#include <cmath>
#include <random>

#include "gtest/gtest.h"

namespace scalelab::analysis {
namespace {

db::RunTimes WithWork(const std::vector<double>& work, const std::string& nodes = "n0",
                      int ranks_per_node = 0) {
  db::RunTimes times;
  for (const double seconds : work) times.ranks.push_back({seconds, 0, 0});
  times.nodes = nodes;
  times.ranks_per_node = ranks_per_node;
  return times;
}

StepCell CellOf(const std::vector<db::RunTimes>& repeats) {
  StepCell cell{static_cast<int>(repeats.at(0).ranks.size()), 64, {}};
  for (size_t i = 0; i < repeats.size(); ++i)
    cell.repeats.push_back(*PartsOf(repeats[i], static_cast<int>(i)));
  return cell;
}

TEST(Slowest, TheRankByHand) {
  // Logarithms of the work of rank 1 relative to the mean of both: 0.05, 0.07 and 0.06; rank 0 has the opposite. Mean 0.06,
  // squares of residuals 2 x (0.01^2 + 0.01^2) = 0.0004, df = 6 - 3 - 2 + 1 = 2, s^2 = 0.0002. The variance of the effect is
  // s^2 (1 - 1/2) / 3 = 0.0000333, and t(2) at 1 - 0.05 / 4 is 6.2053: half the width is 0.035826.
  const std::vector<db::RunTimes> repeats = {WithWork({std::exp(-0.05), std::exp(0.05)}),
                                             WithWork({std::exp(-0.07), std::exp(0.07)}),
                                             WithWork({2 * std::exp(-0.06), 2 * std::exp(0.06)})};
  const auto slowest = SlowestRank(CellOf(repeats), 0.95);
  ASSERT_TRUE(slowest.has_value());
  EXPECT_EQ(slowest->rank(), 1);
  EXPECT_EQ(slowest->node(), "n0");
  EXPECT_EQ(slowest->n(), 3);
  EXPECT_EQ(slowest->compared(), 2);
  EXPECT_NEAR(slowest->excess().mean(), std::expm1(0.06), 1e-12);
  EXPECT_NEAR(slowest->excess().low(), std::expm1(0.06 - 0.035826), 1e-5);
  EXPECT_NEAR(slowest->excess().high(), std::expm1(0.06 + 0.035826), 1e-5);
  EXPECT_TRUE(slowest->significant());
}

TEST(Slowest, ANodeIsTheMeanOfItsRanks) {
  const std::vector<db::RunTimes> repeats = {WithWork({1, 1.02, 1.2, 1.22}, "a,b", 2),
                                             WithWork({1, 1.02, 1.21, 1.21}, "a,b", 2),
                                             WithWork({1.2, 1.23, 1, 1.02}, "b,a", 2)};
  const auto slowest = SlowestNode(CellOf(repeats), 0.95);
  ASSERT_TRUE(slowest.has_value());
  EXPECT_EQ(slowest->node(), "b");
  EXPECT_FALSE(slowest->has_rank());
  EXPECT_TRUE(slowest->significant());
  EXPECT_NEAR(slowest->excess().mean(), std::sqrt(1.2) - 1, 0.01) << "relative to the mean of both nodes";
  EXPECT_EQ(SlowestRank(CellOf(repeats), 0.95)->node(), "") << "the rank ran on both nodes";
}

TEST(Slowest, NodesNeedNotTakePartInEveryRepeat) {
  // Effects a 0, b 0.1, c 0.3, without noise except in one value.
  std::vector<UnitValue> values = {{0, 0, 1}, {1, 0, 1.1}, {1, 1, 2.1}, {2, 1, 2.3}, {0, 2, 0}, {2, 2, 0.3}};
  const auto exact = FindSlowest(values, 3, 0.95);
  ASSERT_TRUE(exact.has_value());
  EXPECT_EQ(exact->unit, 2);
  EXPECT_NEAR(exact->effect, 0.3 - 0.4 / 3, 1e-9);
  EXPECT_NEAR(exact->half, 0, 1e-6);
  EXPECT_EQ(exact->repeats, 2);
  // a and b ran together, and so did c and d, but no repeat connects a with c.
  const std::vector<UnitValue> apart = {{0, 0, 1}, {1, 0, 1.1}, {0, 1, 1}, {1, 1, 1.2},
                                        {2, 2, 1}, {3, 2, 1.1}, {2, 3, 1}, {3, 3, 1.2}};
  EXPECT_FALSE(FindSlowest(apart, 4, 0.95).has_value());
}

TEST(Slowest, EqualAndUnequalRepeatsHaveOneFormula) {
  // Add a repeat with only one unit. Its value has no influence, so the effect is the mean over
  // the complete repeats.
  const std::vector<UnitValue> values = {{0, 0, 0}, {1, 0, 0.1}, {2, 0, 0.5},
                                         {0, 1, 0}, {1, 1, 0.3}, {2, 1, 0.6}};
  const auto complete = FindSlowest(values, 3, 0.95);
  ASSERT_TRUE(complete.has_value());
  EXPECT_NEAR(complete->effect, ((0.5 - 0.2) + (0.6 - 0.3)) / 2, 1e-12);
  std::vector<UnitValue> more = values;
  more.push_back({1, 2, 7});  // the only value of its repeat, so it compares nothing
  const auto unequal = FindSlowest(more, 3, 0.95);
  ASSERT_TRUE(unequal.has_value());
  EXPECT_NEAR(unequal->effect, complete->effect, 1e-9);
  EXPECT_NEAR(unequal->half, complete->half, 1e-9);
}

TEST(Slowest, WithoutNoiseToCompareWithThereIsNone) {
  EXPECT_FALSE(SlowestRank(CellOf({WithWork({1, 2})}), 0.95).has_value()) << "one repeat";
  EXPECT_FALSE(SlowestRank(CellOf({WithWork({1}), WithWork({2})}), 0.95).has_value()) << "one rank";
  EXPECT_FALSE(SlowestNode(CellOf({WithWork({1, 2}, "a,b"), WithWork({1, 2}, "a,b")}), 0.95).has_value())
      << "it is not known which rank ran where";
  EXPECT_FALSE(SlowestNode(CellOf({WithWork({1, 2}), WithWork({1, 2})}), 0.95).has_value()) << "one node";
}

TEST(Slowest, EqualRanksAreRarelyAccused) {
  // The interval is corrected for the number of ranks: if all ranks are equal, at most 5% of studies report a
  // significantly slower one.
  std::mt19937_64 random(7);
  std::normal_distribution<double> noise(0, 0.02);
  constexpr int kStudies = 1000;
  for (const int ranks : {2, 8, 32}) {
    int accused = 0;
    for (int study = 0; study < kStudies; ++study) {
      std::vector<db::RunTimes> repeats;
      for (int repeat = 0; repeat < 3; ++repeat) {
        std::vector<double> work;
        for (int rank = 0; rank < ranks; ++rank) work.push_back(std::exp(noise(random) + 0.1 * repeat));
        repeats.push_back(WithWork(work));
      }
      if (SlowestRank(CellOf(repeats), 0.95)->significant()) ++accused;
    }
    EXPECT_LE(accused, kStudies / 20 + 15) << ranks;
  }
}

}  // namespace
}  // namespace scalelab::analysis
