#include "analysis/factors/node_comparison.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "analysis/factors/unit_effects.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/analysis/fixture.h"

namespace scalelab::analysis {
namespace {

using scalelab::v1::NodeComparison;
using ::testing::HasSubstr;

NodeRun RunOf(size_t cell, int block, const std::string& node, double log_seconds) {
  return {cell, block, 0, std::exp(-log_seconds), node};
}

// Two cells and two nodes, which exchange their cells from block to block.
std::vector<NodeRun> ExchangedNodes() {
  const std::array<double, 4> difference = {0.17, -0.07, 0.19, -0.05}, block = {0, 0.3, 0.1, 0.2};
  std::vector<NodeRun> runs;
  for (const size_t cell : {0, 1}) {
    for (int b = 0; b < 4; ++b) {
      const bool on_x = (b % 2 == 0) == (cell == 0);
      runs.push_back(RunOf(cell, b, on_x ? "x" : "y", block[b] + (cell == 0 ? difference[b] : 0)));
    }
  }
  return runs;
}

TEST(NodeComparison, ByHand) {
  // docs/users/reading-a-curve-statistics.md has this computation.
  const auto comparison = CompareNodes(ExchangedNodes(), 0.95);
  ASSERT_TRUE(comparison.has_value());
  EXPECT_EQ(comparison->missing(), "");
  EXPECT_EQ(comparison->runs(), 8);
  const auto& slowest = comparison->slowest();
  EXPECT_EQ(slowest.node(), "x");
  EXPECT_EQ(slowest.n(), 4);
  EXPECT_EQ(slowest.compared(), 2);
  EXPECT_TRUE(slowest.significant());
  EXPECT_NEAR(slowest.excess().mean(), std::expm1(0.06), 1e-12);
  EXPECT_NEAR(slowest.excess().low(), std::expm1(0.06 - 0.021939), 1e-5);
  EXPECT_NEAR(slowest.excess().high(), std::expm1(0.06 + 0.021939), 1e-5);
}

TEST(NodeComparison, ANodeWithOneRunIsLeftOut) {
  const auto complete = CompareNodes(ExchangedNodes(), 0.95);
  std::vector<NodeRun> runs = ExchangedNodes();
  runs.push_back(RunOf(1, 4, "z", 100));
  const auto comparison = CompareNodes(runs, 0.95);
  ASSERT_TRUE(complete.has_value() && comparison.has_value());
  EXPECT_EQ(comparison->SerializeAsString(), complete->SerializeAsString());
}

TEST(NodeComparison, NodesThatShareNoCellWithTheOthersAreLeftOut) {
  const auto complete = CompareNodes(ExchangedNodes(), 0.95);
  std::vector<NodeRun> runs = ExchangedNodes();
  for (int block = 0; block < 4; ++block) runs.push_back(RunOf(2, block, "z", 100 * block));
  for (int block = 0; block < 4; ++block) runs.push_back(RunOf(3, block, block < 2 ? "v" : "w", block));
  const auto comparison = CompareNodes(runs, 0.95);
  ASSERT_TRUE(complete.has_value() && comparison.has_value());
  EXPECT_EQ(comparison->SerializeAsString(), complete->SerializeAsString());
}

TEST(NodeComparison, WithoutConnectedNodesItSaysWhy) {
  const auto missing = [](const std::vector<NodeRun>& runs) {
    const auto comparison = CompareNodes(runs, 0.95);
    if (!comparison.has_value()) return std::string("no comparison");
    EXPECT_FALSE(comparison->has_slowest());
    return comparison->missing();
  };
  // `node` returns the node of a cell and a block.
  const auto study = [](auto&& node) {
    std::vector<NodeRun> runs;
    for (size_t cell = 0; cell < 4; ++cell) {
      for (int block = 0; block < 4; ++block)
        runs.push_back(RunOf(cell, block, absl::StrCat("n", node(static_cast<int>(cell), block)),
                             0.01 * static_cast<double>(cell * 3 % 4) + 0.02 * block * block));
    }
    return runs;
  };
  const auto cannot = HasSubstr("cannot be distinguished from a slow cell or a slow repeat");
  EXPECT_THAT(missing(study([](int, int block) { return block; })), cannot) << "a node for each repeat";
  EXPECT_THAT(missing(study([](int, int block) { return block % 2; })), cannot) << "whole repeats on a node";
  EXPECT_THAT(missing(study([](int cell, int) { return cell; })), cannot) << "a node for each cell";
  // The nodes 0 and 1 share cells and repeats, and so do the nodes 2 and 3, but in other repeats.
  EXPECT_THAT(missing(study([](int cell, int block) { return (cell + block) % 2 + (block < 2 ? 0 : 2); })),
              cannot);
  EXPECT_THAT(missing(study([](int cell, int block) { return 4 * cell + block; })),
              HasSubstr("fewer than two nodes executed more than one run"));
  // Two cells and two blocks: after the effects of cells, blocks and nodes, nothing is left to estimate the
  // noise.
  EXPECT_THAT(
      missing({RunOf(0, 0, "a", 0.1), RunOf(0, 1, "b", 0.3), RunOf(1, 0, "b", 0.2), RunOf(1, 1, "a", 0.5)}),
      HasSubstr("too few runs"));
  EXPECT_EQ(missing(study([](int, int) { return 0; })), "no comparison") << "one node";
  EXPECT_EQ(missing({}), "no comparison");
}

// Simulates `studies` studies of four cells and six randomised blocks, each run on one of four nodes at
// random. Node n2 needs `slow` more time. Calls `check` with each comparison.
template <class Check>
void Simulate(int studies, double slow, bool timed, Check&& check) {
  std::mt19937_64 random(17);
  std::normal_distribution<double> normal;
  for (int study = 0; study < studies; ++study) {
    std::vector<NodeRun> runs;
    double time = 1000;
    for (int block = 0; block < 6; ++block) {
      const double of_block = 0.05 * normal(random);
      std::array<size_t, 4> order = {0, 1, 2, 3};
      std::ranges::shuffle(order, random);
      for (const size_t cell : order) {
        const auto node = random() % 4;
        NodeRun run = RunOf(cell, block, absl::StrCat("n", node),
                            -0.6 * static_cast<double>(cell) + of_block + (node == 2 ? std::log1p(slow) : 0) +
                                0.02 * normal(random) + (timed ? 1e-4 * time : 0));
        if (timed) run.started = time;
        time += 60;
        runs.push_back(std::move(run));
      }
    }
    std::ranges::stable_sort(runs, {}, &NodeRun::cell);
    const auto comparison = CompareNodes(runs, 0.95);
    ASSERT_TRUE(comparison.has_value());
    check(*comparison);
  }
}

TEST(NodeComparison, ASlowNodeIsNamedWithAnIntervalThatContainsTheTruth) {
  constexpr int kStudies = 300;
  for (const bool timed : {false, true}) {
    int shown = 0, named = 0, others = 0, covered = 0;
    Simulate(kStudies, 0.1, timed, [&](const NodeComparison& comparison) {
      if (!comparison.has_slowest()) return;
      ++shown;
      const auto& slowest = comparison.slowest();
      (slowest.node() == "n2" ? named : others) += slowest.significant();
      const double truth = std::expm1(std::log1p(0.1) * (1 - 1.0 / slowest.compared()));
      covered +=
          slowest.node() == "n2" && slowest.excess().low() <= truth && truth <= slowest.excess().high();
    });
    EXPECT_GE(shown, kStudies * 99 / 100) << "timed " << timed;
    EXPECT_GE(named, kStudies * 90 / 100) << "timed " << timed;
    EXPECT_LE(others, kStudies / 100) << "timed " << timed;
    EXPECT_GE(covered, kStudies * 94 / 100) << "timed " << timed;
  }
}

TEST(NodeComparison, AmongEqualNodesASlowestOneIsRarelyNamed) {
  // In at most 5% of studies an interval does not contain the true effect, in half of them because it is
  // above this effect. Only such an interval names a node.
  constexpr int kStudies = 600;
  for (const bool timed : {false, true}) {
    int shown = 0, named = 0;
    Simulate(kStudies, 0, timed, [&](const NodeComparison& comparison) {
      shown += comparison.has_slowest();
      named += comparison.slowest().significant();
    });
    EXPECT_GE(shown, kStudies * 99 / 100);
    EXPECT_LE(named, kStudies / 20) << "timed " << timed;
    EXPECT_GE(named, 2) << "timed " << timed << ": the intervals are too wide";
  }
}

// A node with few runs has a wide interval. If it has the largest effect by chance, it does not hide another node.
TEST(LargestEffect, IsThatOfAUnitWhoseIntervalIsAboveZero) {
  const UnitEffects effects{{0.021, 0.038, -0.027, -0.032}, {1, 5, 1.1, 1.6}};
  const SlowestUnit slowest = LargestEffect(effects, 0.0009, 20, 0.95);
  EXPECT_EQ(slowest.unit, 0);
  EXPECT_EQ(slowest.effect, 0.021);
  EXPECT_LT(slowest.half, 0.021);
  EXPECT_EQ(LargestEffect(effects, 0.009, 20, 0.95).unit, 1) << "no interval is above 0";
}

TEST(NodeComparison, ACurveComparesItsRunsOnOneNodeByFingerprint) {
  Results results;
  const auto add = [&](double throughput, const std::string& nodes, const std::string& fingerprint = "a100") {
    results.Ok({throughput}, fingerprint);
    db::RunTimes times;
    times.nodes = nodes;
    results.Times(std::move(times));
  };
  const std::vector<NodeRun> runs = ExchangedNodes();
  size_t cell = runs.size();
  for (const NodeRun& run : runs) {
    if (run.cell != cell) {
      if (cell == 0) {
        add(1e6, "x,y");           // not on one node
        add(1e6, "x", "another");  // other hardware
        results.Other(db::RunState::kFailed);
      }
      cell = run.cell;
      results.Cell(1, cell == 0 ? R"({"engine":"a"})" : R"({"engine":"b"})");
    }
    add(run.throughput, run.node);
  }
  const auto curve = results.Explained();
  ASSERT_EQ(curve.node_comparisons_size(), 1);
  auto expected = *CompareNodes(runs, 0.95);
  expected.set_fingerprint("a100");
  EXPECT_EQ(curve.node_comparisons(0).SerializeAsString(), expected.SerializeAsString());
  EXPECT_EQ(results.Explained(false).node_comparisons_size(), 0) << "factors were not asked for";
}

}  // namespace
}  // namespace scalelab::analysis
