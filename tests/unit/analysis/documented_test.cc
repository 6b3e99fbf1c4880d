// Tests that docs/users/reading-a-curve-statistics.md has the figures that coverage_test.cc requires. This is a test of its own,
// because the result of coverage_test.cc is kept while only the page changes.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "analysis/factors/node_comparison.h"
#include "gtest/gtest.h"
#include "tests/unit/analysis/simulated_study.h"

namespace scalelab::analysis {
namespace {

// Returns the shares of the coverage table in a row that begins with `begin`, by the number of repeats; nothing if there is no
// such row.
std::map<int, double> SharesOfRow(const std::string& begin) {
  constexpr int kRepeats[] = {2, 3, 5, 10, 20, 100};
  std::ifstream page(SCALELAB_SOURCE_DIR "/docs/users/reading-a-curve-statistics.md");
  for (std::string line; std::getline(page, line);) {
    if (!absl::StartsWith(line, begin)) continue;
    const std::vector<std::string> columns = absl::StrSplit(line.substr(begin.size()), " | ");
    if (columns.size() != std::size(kRepeats)) continue;  // another table
    std::map<int, double> shares;
    for (size_t i = 0; i < columns.size(); ++i) {  // "95.5 [3.0]" has the half width, too
      if (!absl::SimpleAtod(columns[i].substr(0, columns[i].find(' ')), &shares[kRepeats[i]])) return {};
    }
    return shares;
  }
  return {};
}

TEST(Documentation, TheCoverageTableHasTheSharesThatAreTested) {
  for (const DocumentedShare& tested : DocumentedShares()) {
    const auto shares = SharesOfRow(absl::StrCat("| ", tested.noise, " * | ", tested.cells, " | "));
    ASSERT_TRUE(shares.contains(tested.n)) << tested.noise << ", " << tested.cells << " cells";
    EXPECT_DOUBLE_EQ(shares.at(tested.n), tested.percent)
        << tested.noise << ", " << tested.cells << " cells, n = " << tested.n;
  }
}

// The page names the smallest and the largest share where the assumptions hold, and one exception.
TEST(Documentation, WhereTheAssumptionsHoldTheSharesAreFrom93To99Percent) {
  std::vector<double> all;
  for (const Noise& noise : NoiseKinds()) {
    for (const int cells : {2, 4, 12}) {
      const auto shares =
          SharesOfRow(absl::StrCat("| ", noise.name, noise.holds ? " | " : " * | ", cells, " | "));
      ASSERT_FALSE(shares.empty()) << noise.name << ", " << cells << " cells";
      for (const auto& [n, share] : shares) {
        if (noise.holds) all.push_back(share);
      }
    }
  }
  std::ranges::sort(all);
  EXPECT_EQ(all[0], 91.9);
  EXPECT_EQ(all[1], 93.0);
  EXPECT_EQ(all.back(), 98.2);
}

// The page computes the slowest of two nodes by hand.
TEST(Documentation, TheSlowestNodeByHandIsThatOfTheProgram) {
  constexpr double kDifferences[] = {0.17, -0.07, 0.19, -0.05};  // of the logarithms of the cells' times
  std::vector<NodeRun> runs;
  for (const size_t cell : {0, 1}) {
    for (int block = 0; block < 4; ++block) {
      const bool on_x = (block % 2 == 0) == (cell == 0);
      runs.push_back({cell, block, 0, cell == 0 ? std::exp(-kDifferences[block]) : 1, on_x ? "x" : "y"});
    }
  }
  const auto comparison = CompareNodes(runs, 0.95);
  ASSERT_TRUE(comparison.has_value());
  const auto& excess = comparison->slowest().excess();
  const std::string result = absl::StrFormat(
      "node %s is %.1f%% slower than the mean of both nodes, [%.1f, %.1f]", comparison->slowest().node(),
      100 * excess.mean(), 100 * excess.low(), 100 * excess.high());
  std::ifstream page(SCALELAB_SOURCE_DIR "/docs/users/reading-a-curve-statistics.md");
  std::string text;
  for (std::string line; std::getline(page, line);) absl::StrAppend(&text, line, " ");
  EXPECT_TRUE(absl::StrContains(text, result)) << result;
}

}  // namespace
}  // namespace scalelab::analysis
