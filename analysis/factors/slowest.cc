#include "analysis/factors/slowest.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <span>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "analysis/distributions.h"

namespace scalelab::analysis {
namespace {

using scalelab::v1::SlowestPart;

// Maximum number of units, because the time of the exact solution grows with the cube of this number.
constexpr int kMostUnequalUnits = 200;

// A symmetric matrix by rows.
class Matrix {
 public:
  explicit Matrix(int size) : size_(size), cells_(static_cast<size_t>(size) * size) {}
  double& at(int row, int column) { return cells_[static_cast<size_t>(row) * size_ + column]; }
  int size() const { return size_; }
  // Replaces the matrix, which is symmetric and not negative definite, by its inverse (Gauss-Jordan). Returns
  // false if it is singular.
  bool Invert();

 private:
  int size_;
  std::vector<double> cells_;
};

bool Matrix::Invert() {
  for (int k = 0; k < size_; ++k) {
    const double pivot = at(k, k);
    if (!(pivot > 1e-9)) return false;
    at(k, k) = 1;
    for (int j = 0; j < size_; ++j) at(k, j) /= pivot;
    for (int i = 0; i < size_; ++i) {
      if (i == k) continue;
      const double factor = at(i, k);
      at(i, k) = 0;
      for (int j = 0; j < size_; ++j) at(i, j) -= factor * at(k, j);
    }
  }
  return true;
}

// The least squares solution of value = repeat + unit: the effects of the units, whose sum is 0, and their variances in
// units of that of the noise.
struct Effects {
  std::vector<double> effect, variance;
};

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
Effects SolveEqual(const Repeats& repeats, int units) {
  Effects solution{std::vector<double>(units), std::vector<double>(units)};
  const double n = static_cast<double>(repeats.size());
  for (const std::span<const UnitValue> values : repeats) {
    const double mean = MeanOf(values);
    for (const UnitValue& value : values) solution.effect[value.unit] += (value.log_seconds - mean) / n;
  }
  for (double& variance : solution.variance) variance = (1 - 1.0 / units) / n;
  return solution;
}

// The normal equations without the repeats are L e = b, where L is the Laplacian of the graph in which units that share a
// repeat are neighbours. L + J / units, J being all ones, is regular if the graph is connected.
std::optional<Effects> SolveUnequal(const Repeats& repeats, int units) {
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
  for (int i = 0; i < units; ++i) {
    for (int j = 0; j < units; ++j) laplacian.at(i, j) += 1.0 / units;
  }
  if (!laplacian.Invert()) return std::nullopt;
  Effects solution{std::vector<double>(units), std::vector<double>(units)};
  for (int i = 0; i < units; ++i) {
    for (int j = 0; j < units; ++j) solution.effect[i] += (laplacian.at(i, j) - 1.0 / units) * right[j];
    solution.variance[i] = laplacian.at(i, i) - 1.0 / units;
  }
  return solution;
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

SlowestPart ToMessage(const SlowestUnit& slowest, int units) {
  SlowestPart part;
  part.set_n(slowest.repeats);
  part.set_compared(units);
  part.set_significant(slowest.effect > slowest.half);
  part.mutable_excess()->set_mean(std::expm1(slowest.effect));
  part.mutable_excess()->set_median(std::expm1(slowest.effect));
  part.mutable_excess()->set_low(std::expm1(slowest.effect - slowest.half));
  part.mutable_excess()->set_high(std::expm1(slowest.effect + slowest.half));
  return part;
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
  if (!equal && units > kMostUnequalUnits) return std::nullopt;
  const std::optional<Effects> solution = equal ? SolveEqual(repeats, units) : SolveUnequal(repeats, units);
  if (!solution.has_value()) return std::nullopt;
  SlowestUnit slowest;
  slowest.unit = static_cast<int>(std::ranges::max_element(solution->effect) - solution->effect.begin());
  slowest.effect = solution->effect[slowest.unit];
  const double variance = ResidualSquares(repeats, solution->effect) / df * solution->variance[slowest.unit];
  slowest.half = StudentQuantile(1 - (1 - confidence) / (2 * units), df) * std::sqrt(variance);
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
  SlowestPart part = ToMessage(*slowest, cell.ranks);
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
  SlowestPart part = ToMessage(*slowest, static_cast<int>(names.size()));
  part.set_node(names[slowest->unit]);
  return part;
}

}  // namespace scalelab::analysis
