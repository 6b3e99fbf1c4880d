#include "analysis/factors/slowest.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"

namespace scalelab::analysis {
namespace {

using scalelab::v1::SlowestPart;

// The values, grouped by repeat.
using Repeats = std::vector<std::span<const UnitValue>>;

// `values` must be ordered by repeat.
Repeats ByRepeat(std::span<const UnitValue> values) {
  Repeats repeats;
  for (size_t begin = 0, end = 0; begin < values.size(); begin = end) {
    while (end < values.size() && values[end].repeat == values[begin].repeat) ++end;
    repeats.push_back(values.subspan(begin, end - begin));
  }
  return repeats;
}

double MeanOf(std::span<const UnitValue> values) {
  double sum = 0;
  for (const UnitValue& value : values) sum += value.log_seconds;
  return sum / static_cast<double>(values.size());
}

// Every unit takes part in every repeat.
UnitEffects SolveEqual(const Repeats& repeats, int units) {
  UnitEffects solution{std::vector<double>(units), std::vector<double>(units)};
  const double n = static_cast<double>(repeats.size());
  for (const std::span<const UnitValue> values : repeats) {
    const double mean = MeanOf(values);
    for (const UnitValue& value : values) solution.effect[value.unit] += (value.log_seconds - mean) / n;
  }
  for (double& variance : solution.variance) variance = (1 - 1.0 / units) / n;
  return solution;
}

// The normal equations without the repeats: units that share a repeat are neighbours.
std::optional<UnitEffects> SolveUnequal(const Repeats& repeats, int units) {
  Matrix laplacian(units);
  std::vector<double> right(units);
  for (const std::span<const UnitValue> values : repeats) {
    const double mean = MeanOf(values), share = 1 / static_cast<double>(values.size());
    for (const UnitValue& a : values) {
      right[a.unit] += a.log_seconds - mean;
      laplacian.at(a.unit, a.unit) += 1;
      for (const UnitValue& b : values) laplacian.at(a.unit, b.unit) -= share;
    }
  }
  return SolveUnits(std::move(laplacian), right);
}

double ResidualSquares(const Repeats& repeats, const std::vector<double>& effect) {
  double squares = 0;
  for (const std::span<const UnitValue> values : repeats) {
    double mean = 0;
    for (const UnitValue& value : values)
      mean += (value.log_seconds - effect[value.unit]) / static_cast<double>(values.size());
    for (const UnitValue& value : values) {
      const double residual = value.log_seconds - effect[value.unit] - mean;
      squares += residual * residual;
    }
  }
  return squares;
}

// Returns the names of the nodes by rank; nothing if they are not known.
std::vector<std::string> NodesByRank(const db::RunTimes& times) {
  const std::vector<std::string> nodes = absl::StrSplit(times.nodes, ',', absl::SkipEmpty());
  std::vector<std::string> of;
  for (size_t rank = 0; rank < times.ranks.size(); ++rank) {
    const size_t node = times.ranks_per_node > 0 ? rank / static_cast<size_t>(times.ranks_per_node) : 0;
    if (node >= nodes.size() || (times.ranks_per_node <= 0 && nodes.size() > 1)) return {};
    of.push_back(nodes[node]);
  }
  return of;
}

// Returns the node on which the rank ran in all repeats; empty if there is none.
std::string NodeOf(const StepCell& cell, int rank) {
  std::string node;
  const db::RunTimes* before = nullptr;
  for (const StepParts& parts : cell.repeats) {
    const db::RunTimes& times = *parts.times;
    const bool same = before != nullptr && before->nodes == times.nodes &&
                      before->ranks_per_node == times.ranks_per_node &&
                      before->ranks.size() == times.ranks.size();
    before = &times;
    if (same) continue;
    const std::vector<std::string> nodes = NodesByRank(times);
    if (nodes.empty() || (!node.empty() && nodes[rank] != node)) return "";
    node = nodes[rank];
  }
  return node;
}

}  // namespace

std::optional<SlowestUnit> FindSlowest(std::vector<UnitValue> values, int units, double confidence) {
  if (units < 2) return std::nullopt;
  if (!std::ranges::is_sorted(values, {}, &UnitValue::repeat))
    std::ranges::stable_sort(values, {}, &UnitValue::repeat);
  const Repeats repeats = ByRepeat(values);
  const double df = static_cast<double>(values.size()) - static_cast<double>(repeats.size()) - units + 1;
  if (df < 1) return std::nullopt;
  const bool equal = values.size() == repeats.size() * static_cast<size_t>(units);
  if (!equal && units > kMostUnits) return std::nullopt;
  const std::optional<UnitEffects> solution =
      equal ? SolveEqual(repeats, units) : SolveUnequal(repeats, units);
  if (!solution.has_value()) return std::nullopt;
  SlowestUnit slowest = LargestEffect(*solution, ResidualSquares(repeats, solution->effect), df, confidence);
  slowest.repeats = static_cast<int>(
      std::ranges::count_if(values, [&](const UnitValue& value) { return value.unit == slowest.unit; }));
  return slowest;
}

std::optional<SlowestPart> SlowestRank(const StepCell& cell, double confidence) {
  if (cell.ranks < 2) return std::nullopt;
  std::vector<UnitValue> values;
  values.reserve(cell.repeats.size() * static_cast<size_t>(cell.ranks));
  for (const StepParts& parts : cell.repeats) {
    if (static_cast<int>(parts.times->ranks.size()) != cell.ranks) continue;
    for (int rank = 0; rank < cell.ranks; ++rank)
      values.push_back({rank, parts.repeat, std::log(WorkOf(parts.times->ranks[static_cast<size_t>(rank)]))});
  }
  const auto slowest = FindSlowest(std::move(values), cell.ranks, confidence);
  if (!slowest.has_value()) return std::nullopt;
  SlowestPart part = ToSlowestPart(*slowest, cell.ranks);
  part.set_rank(slowest->unit);
  part.set_node(NodeOf(cell, slowest->unit));
  return part;
}

std::optional<SlowestPart> SlowestNode(const StepCell& cell, double confidence) {
  std::map<std::string, int> numbers;
  std::vector<std::string> names;
  std::vector<UnitValue> values;
  for (const StepParts& parts : cell.repeats) {
    if (!absl::StrContains(parts.times->nodes, ',')) continue;  // one node
    std::map<std::string, std::vector<double>> logs;
    const std::vector<std::string> nodes = NodesByRank(*parts.times);
    for (size_t rank = 0; rank < nodes.size(); ++rank)
      logs[nodes[rank]].push_back(std::log(WorkOf(parts.times->ranks[static_cast<size_t>(rank)])));
    if (logs.size() < 2) continue;  // a repeat on one node does not compare nodes
    for (const auto& [name, of_node] : logs) {
      const auto [number, added] = numbers.try_emplace(name, static_cast<int>(names.size()));
      if (added) names.push_back(name);
      double sum = 0;
      for (const double value : of_node) sum += value;
      values.push_back({number->second, parts.repeat, sum / static_cast<double>(of_node.size())});
    }
  }
  const auto slowest = FindSlowest(std::move(values), static_cast<int>(names.size()), confidence);
  if (!slowest.has_value()) return std::nullopt;
  SlowestPart part = ToSlowestPart(*slowest, static_cast<int>(names.size()));
  part.set_node(names[slowest->unit]);
  return part;
}

}  // namespace scalelab::analysis
