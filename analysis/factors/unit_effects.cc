#include "analysis/factors/unit_effects.h"

#include <cmath>
#include <utility>

#include "analysis/distributions.h"

namespace scalelab::analysis {

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

// The matrix is the Laplacian L of a graph in which units that can be compared are neighbours. L + J / units,
// J being all ones, is regular if the graph is connected.
std::optional<UnitEffects> SolveUnits(Matrix matrix, const std::vector<double>& right) {
  const int units = matrix.size();
  for (int i = 0; i < units; ++i) {
    for (int j = 0; j < units; ++j) matrix.at(i, j) += 1.0 / units;
  }
  if (!matrix.Invert()) return std::nullopt;
  UnitEffects solution{std::vector<double>(units), std::vector<double>(units)};
  for (int i = 0; i < units; ++i) {
    for (int j = 0; j < units; ++j) solution.effect[i] += (matrix.at(i, j) - 1.0 / units) * right[j];
    solution.variance[i] = matrix.at(i, i) - 1.0 / units;
  }
  return solution;
}

SlowestUnit LargestEffect(const UnitEffects& effects, double squares, double df, double confidence) {
  const double units = static_cast<double>(effects.effect.size());
  const double t = StudentQuantile(1 - (1 - confidence) / (2 * units), df);
  const auto half = [&](size_t unit) { return t * std::sqrt(squares / df * effects.variance[unit]); };
  const auto rank = [&](size_t unit) {
    return std::pair(effects.effect[unit] > half(unit), effects.effect[unit]);
  };
  size_t slowest = 0;
  for (size_t unit = 1; unit < effects.effect.size(); ++unit) {
    if (rank(unit) > rank(slowest)) slowest = unit;
  }
  return {static_cast<int>(slowest), effects.effect[slowest], half(slowest), 0};
}

scalelab::v1::SlowestPart ToSlowestPart(const SlowestUnit& slowest, int units) {
  scalelab::v1::SlowestPart part;
  part.set_n(slowest.repeats);
  part.set_compared(units);
  part.set_significant(slowest.effect > slowest.half);
  part.mutable_excess()->set_mean(std::expm1(slowest.effect));
  part.mutable_excess()->set_median(std::expm1(slowest.effect));
  part.mutable_excess()->set_low(std::expm1(slowest.effect - slowest.half));
  part.mutable_excess()->set_high(std::expm1(slowest.effect + slowest.half));
  return part;
}

}  // namespace scalelab::analysis
