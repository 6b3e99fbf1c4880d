#include "analysis/block_model.h"

#include <cmath>
#include <random>

#include "analysis/bootstrap.h"
#include "analysis/ratios.h"
#include "gtest/gtest.h"

namespace scalelab::analysis {
namespace {

std::vector<const Sample*> Pointers(const std::vector<Sample>& samples) {
  std::vector<const Sample*> pointers;
  for (const Sample& sample : samples) pointers.push_back(&sample);
  return pointers;
}

TEST(BlockModel, OfTwoCellsIsTheTTestOfPairs) {
  // Logarithms of the ratios: ln 2, ln 1.9, ln 1.81818.
  const std::vector<Sample> cells = {{{0, 1, 2}, {180, 190, 200}, {}}, {{0, 1, 2}, {90, 100, 110}, {}}};
  const BlockModel model(Pointers(cells), 3);
  const auto difference = model.Compare(0, 1);
  ASSERT_TRUE(difference.has_value());
  EXPECT_NEAR(difference->log_ratio, (std::log(2) + std::log(1.9) + std::log(200 / 110.0)) / 3, 1e-14);
  EXPECT_NEAR(difference->error, 0.0275403, 1e-6);
  EXPECT_DOUBLE_EQ(difference->df, 2);
  EXPECT_EQ(difference->common, 3);
}

TEST(BlockModel, PoolsTheNoiseOfAllCells) {
  // Residuals by hand: rows of a 2 x 3 table with interaction +-d in two of the blocks.
  const double d = 0.03;
  const std::vector<Sample> cells = {{{0, 1, 2}, {std::exp(d), std::exp(-d), 1}, {}},
                                     {{0, 1, 2}, {std::exp(-d), std::exp(d), 1}, {}},
                                     {{0, 1, 2}, {1, 1, 1}, {}}};
  const BlockModel model(Pointers(cells), 3);
  // SSE = 4 d^2, (3 - 1)(3 - 1) = 4 degrees of freedom.
  EXPECT_DOUBLE_EQ(model.df(), 4);
  EXPECT_NEAR(model.variance(), d * d, 1e-12);
  // nu = c (n - 1) / 2 = 3. The variance within blocks of the first two is (2d)^2 = 4 d^2, more than 2 d^2.
  const auto noisy = model.Compare(0, 1), quiet = model.Compare(0, 2);
  EXPECT_DOUBLE_EQ(noisy->df, 3);
  EXPECT_NEAR(noisy->error, std::sqrt(4 * d * d / 3), 1e-12);
  EXPECT_NEAR(quiet->error, std::sqrt(2 * d * d / 3), 1e-12);
}

TEST(BlockModel, ANoisyCellHasItsOwnVariance) {
  // docs/users/reading-a-curve-statistics.md has this example. The residuals are d, -d, 0 and -d, d, 0 and three zeros: s^2 is
  // 4 d^2 / 4, and that of a cell alone 2 d^2 / (2 x 2 / 3) = 1.5 d^2.
  const double d = 0.01;
  const std::vector<Sample> cells = {{{0, 1, 2}, {std::exp(d), std::exp(-d), 1}, {}},
                                     {{0, 1, 2}, {std::exp(-d), std::exp(d), 1}, {}},
                                     {{0, 1, 2}, {1, 1, 1}, {}}};
  const BlockModel model(Pointers(cells), 3);
  EXPECT_NEAR(model.VarianceOf(0), 1.5 * d * d, 1e-15);
  EXPECT_NEAR(model.VarianceOf(1), 1.5 * d * d, 1e-15);
  EXPECT_NEAR(model.VarianceOf(2), d * d, 1e-15);
}

TEST(BlockModel, MissingBlocksDoNotBiasAComparison) {
  // Blocks 0 and 1 run at half speed. The cells share no block; the third cell connects them.
  const std::vector<Sample> cells = {
      {{0, 1}, {300, 301}, {}}, {{2, 3}, {100, 101}, {}}, {{0, 1, 2, 3}, {100, 101, 200, 201}, {}}};
  const auto difference = BlockModel(Pointers(cells), 4).Compare(0, 1);
  ASSERT_TRUE(difference.has_value());
  EXPECT_NEAR(difference->ratio, 6, 0.05);
  EXPECT_EQ(difference->common, 0);
  // Without the third cell, the two cells cannot be compared.
  EXPECT_FALSE(BlockModel({&cells[0], &cells[1]}, 4).Compare(0, 1).has_value());
}

TEST(BlockModel, TheDriftOfTheMachineIsNotPartOfADifference) {
  std::mt19937 random(3);
  std::vector<Sample> cells(4);
  double now = 0;
  for (int block = 0; block < 5; ++block) {
    std::vector<size_t> order = {0, 1, 2, 3};
    std::shuffle(order.begin(), order.end(), random);
    for (const size_t i : order) {
      cells[i].block.push_back(block);
      cells[i].time.push_back(now);
      cells[i].value.push_back(100 * (static_cast<double>(i) + 1) * std::exp(-0.02 * now++));
    }
  }
  const BlockModel model(Pointers(cells), 5);
  EXPECT_TRUE(model.has_drift());
  EXPECT_NEAR(model.Compare(3, 0)->ratio, 4, 1e-9);
  for (Sample& cell : cells) cell.time.clear();
  EXPECT_FALSE(BlockModel(Pointers(cells), 5).has_drift());
}

TEST(BlockModel, TwoCellsHaveADriftFromFourBlocksOn) {
  for (const int blocks : {3, 4}) {
    std::vector<Sample> cells(2);
    double now = 0;
    for (int block = 0; block < blocks; ++block) {
      for (const size_t i : {0, 1}) {
        Sample& cell = cells[block % 2 == 0 ? i : 1 - i];  // each second block has the reverse order
        cell.block.push_back(block);
        cell.time.push_back(now);
        cell.value.push_back((&cell == &cells[0] ? 100 : 200) * std::exp(-0.02 * now++));
      }
    }
    const BlockModel model(Pointers(cells), blocks);
    const auto difference = model.Compare(1, 0);
    ASSERT_TRUE(difference.has_value());
    EXPECT_EQ(model.has_drift(), blocks == 4);
    EXPECT_DOUBLE_EQ(difference->df, 2) << blocks << " blocks";
    if (blocks == 4) {
      EXPECT_NEAR(difference->ratio, 2, 1e-9);
    }
  }
}

TEST(BlockModel, CellsInTheSameOrderInEachBlockGiveNoDrift) {
  std::vector<Sample> cells(4);
  double now = 0;
  for (int block = 0; block < 5; ++block) {
    for (Sample& cell : cells) {
      cell.block.push_back(block);
      cell.time.push_back(++now);
      cell.value.push_back(100 + std::sin(now));
    }
  }
  EXPECT_FALSE(BlockModel(Pointers(cells), 5).has_drift());
}

TEST(BlockModel, WithoutRepeatsTheNoiseIsUnknown) {
  const std::vector<Sample> cells = {{{0}, {180}, {}}, {{0}, {100}, {}}, {{}, {}, {}}};
  const BlockModel model(Pointers(cells), 1);
  EXPECT_EQ(model.df(), 0);
  EXPECT_DOUBLE_EQ(model.Compare(0, 1)->ratio, 1.8);
  EXPECT_EQ(model.Compare(0, 1)->df, 0);
  EXPECT_FALSE(model.Compare(0, 2).has_value());
}

TEST(CellRatios, WithEightBlocksOnlyThoseThatBothHaveCount) {
  // Ten blocks; block 0 is ten times slower, and the base case lacks it.
  Sample a, b;
  for (int block = 0; block < 10; ++block) {
    a.block.push_back(block);
    a.value.push_back((block == 0 ? 20 : 200) + block % 3);
    if (block == 0) continue;
    b.block.push_back(block);
    b.value.push_back(100 + block % 2);
  }
  const BlockBootstrap bootstrap(10, 1000, 0.95);
  const auto ratio = CellRatios({&a, &b}, bootstrap).Compare(0, 1);
  ASSERT_TRUE(ratio.has_value());
  EXPECT_NEAR(ratio->estimate.mean(), 2, 0.02);
  EXPECT_GT(ratio->estimate.low(), 1.9);
  EXPECT_EQ(ratio->common, 9);
}

}  // namespace
}  // namespace scalelab::analysis
