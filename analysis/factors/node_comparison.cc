#include "analysis/factors/node_comparison.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <span>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "analysis/block_model.h"
#include "analysis/factors/unit_effects.h"

namespace scalelab::analysis {
namespace {

using scalelab::v1::NodeComparison;

// The largest number of runs x nodes, because each node needs a fit of the block model to all runs.
constexpr size_t kMostIndicators = 500'000;

// The runs as samples of their cells. Their values change from fit to fit.
class Cells {
 public:
  Cells(std::span<const NodeRun> runs, int blocks) : blocks_(blocks) {
    for (size_t i = 0; i < runs.size(); ++i) {
      if (i == 0 || runs[i].cell != runs[i - 1].cell) samples_.emplace_back();
      Sample& sample = samples_.back();
      sample.block.push_back(runs[i].block);
      sample.value.push_back(0);
      if (runs[i].started > 0) sample.time.push_back(runs[i].started);
    }
    for (const Sample& sample : samples_) pointers_.push_back(&sample);
  }

  // Fits cells, blocks and drift to the logarithms of the values. `value` returns the value of a run by its
  // index.
  BlockModel Fit(absl::FunctionRef<double(size_t)> value) {
    size_t run = 0;
    for (Sample& sample : samples_) {
      for (double& of_run : sample.value) of_run = value(run++);
    }
    return BlockModel(pointers_, blocks_);
  }

  // Returns the residuals of all runs.
  std::vector<double> Residuals(const BlockModel& model) const {
    std::vector<double> residuals;
    for (size_t cell = 0; cell < samples_.size(); ++cell) {
      const std::vector<double>& of_cell = model.Residuals(cell);
      residuals.insert(residuals.end(), of_cell.begin(), of_cell.end());
    }
    return residuals;
  }

 private:
  const int blocks_;
  std::vector<Sample> samples_;
  std::vector<const Sample*> pointers_;
};

// Removes the runs of nodes that executed only one run.
void RemoveNodesWithOneRun(std::vector<NodeRun>& runs) {
  std::map<std::string, int> count;
  for (const NodeRun& run : runs) ++count[run.node];
  std::erase_if(runs, [&](const NodeRun& run) { return count.at(run.node) < 2; });
}

// Two nodes are connected if both executed runs of one cell, or if a third node is connected to both. Keeps
// only the runs of the connected nodes with the most runs, because nodes that share no cell cannot be compared.
void KeepConnectedNodes(std::vector<NodeRun>& runs) {
  std::map<std::string, std::string> parents;  // of nodes; the root of a tree is its own parent
  const auto root = [&](const std::string& node) {
    std::string found = node;
    while (parents.at(found) != found) found = parents.at(found);
    parents[node] = found;  // shortens the next search
    return found;
  };
  for (size_t i = 0; i < runs.size(); ++i) {
    parents.try_emplace(runs[i].node, runs[i].node);
    if (i > 0 && runs[i].cell == runs[i - 1].cell) parents[root(runs[i].node)] = root(runs[i - 1].node);
  }
  std::map<std::string, int> sizes;
  for (const NodeRun& run : runs) ++sizes[root(run.node)];
  if (sizes.empty()) return;
  const std::string largest =
      std::ranges::max_element(sizes, {}, &std::pair<const std::string, int>::second)->first;
  std::erase_if(runs, [&](const NodeRun& run) { return root(run.node) != largest; });
}

// Returns the names of the nodes, and sets `number` to the number of the node of each run.
std::vector<std::string> NumberNodes(const std::vector<NodeRun>& runs, std::vector<int>& number) {
  std::map<std::string, int> numbers;
  std::vector<std::string> names;
  for (const NodeRun& run : runs) {
    const auto [it, added] = numbers.try_emplace(run.node, static_cast<int>(names.size()));
    if (added) names.push_back(run.node);
    number.push_back(it->second);
  }
  return names;
}

// Numbers the blocks of the runs without gaps. Returns their number.
int NumberBlocks(std::vector<NodeRun>& runs) {
  std::map<int, int> numbers;
  for (const NodeRun& run : runs) numbers[run.block] = 0;
  int blocks = 0;
  for (auto& [block, number] : numbers) number = blocks++;
  for (NodeRun& run : runs) run.block = numbers[run.block];
  return blocks;
}

constexpr char kNotDistinct[] =
    "the nodes did not execute enough runs of the same cells and of the same repeats, so a slow node "
    "cannot be distinguished from a slow cell or a slow repeat";

// Sets `slowest` or `missing`.
void FindSlowestNode(const std::vector<NodeRun>& runs, const std::vector<int>& number,
                     const std::vector<std::string>& names, int blocks, double confidence,
                     NodeComparison& comparison) {
  const int nodes = static_cast<int>(names.size());
  Cells cells(runs, blocks);
  Matrix matrix(nodes);
  std::vector<double> right(names.size());
  const BlockModel model = cells.Fit([&](size_t run) { return 1 / runs[run].throughput; });
  const std::vector<double> log_seconds = cells.Residuals(model);
  for (size_t run = 0; run < runs.size(); ++run) right[number[run]] += log_seconds[run];
  for (int node = 0; node < nodes; ++node) {
    // The logarithms are 1 on the node, and 0 elsewhere.
    const std::vector<double> indicator =
        cells.Residuals(cells.Fit([&](size_t run) { return number[run] == node ? std::numbers::e : 1.0; }));
    for (size_t run = 0; run < runs.size(); ++run) matrix.at(number[run], node) += indicator[run];
  }
  const std::optional<UnitEffects> effects = SolveUnits(std::move(matrix), right);
  if (!effects.has_value()) {
    comparison.set_missing(kNotDistinct);
    return;
  }
  const double df = model.df() - nodes + 1;
  if (df < 1) {
    comparison.set_missing("there are too few runs to estimate their noise; ask for more repeats");
    return;
  }
  const BlockModel rest = cells.Fit([&](size_t run) {
    return 1 / runs[run].throughput / std::exp(effects->effect[static_cast<size_t>(number[run])]);
  });
  SlowestUnit slowest = LargestEffect(*effects, rest.variance() * rest.df(), df, confidence);
  slowest.repeats = static_cast<int>(std::ranges::count(number, slowest.unit));
  *comparison.mutable_slowest() = ToSlowestPart(slowest, nodes);
  comparison.mutable_slowest()->set_node(names[static_cast<size_t>(slowest.unit)]);
}

}  // namespace

std::optional<NodeComparison> CompareNodes(std::vector<NodeRun> runs, double confidence) {
  const auto other = [&](const NodeRun& run) { return run.node != runs[0].node; };
  if (std::ranges::none_of(runs, other)) return std::nullopt;
  RemoveNodesWithOneRun(runs);
  const bool several = std::ranges::any_of(runs, other);
  KeepConnectedNodes(runs);
  std::vector<int> number;  // of the node of each run
  const std::vector<std::string> names = NumberNodes(runs, number);
  const int blocks = NumberBlocks(runs);
  NodeComparison comparison;
  comparison.set_runs(static_cast<int>(runs.size()));
  if (names.size() < 2) {
    comparison.set_missing(several ? kNotDistinct : "fewer than two nodes executed more than one run");
  } else if (blocks > BlockModel::kMaxBlocks) {
    comparison.set_missing(absl::StrCat("the runs are of more than ", BlockModel::kMaxBlocks, " repeats"));
  } else if (names.size() > kMostUnits || names.size() * runs.size() > kMostIndicators) {
    comparison.set_missing(
        absl::StrCat(runs.size(), " runs on ", names.size(), " nodes are too many to compare"));
  } else {
    FindSlowestNode(runs, number, names, blocks, confidence, comparison);
  }
  return comparison;
}

}  // namespace scalelab::analysis
