// Effects of units, which are ranks or nodes, by least squares (Scheffe, The Analysis of Variance, 1959,
// chapter 4).
//
// The logarithm of a time is modelled as unit + other effects + noise. The effects of the units are relative
// to their mean. The interval of the largest effect is corrected for the number of units (Bonferroni),
// because it was chosen after the measurement.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "scalelab/v1/result.pb.h"

namespace scalelab::analysis {

// The largest number of units in a general model, because the time of the solution grows with the cube of
// this number.
inline constexpr int kMostUnits = 200;

// A square matrix by rows.
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

// The effects of the units, whose sum is 0, and their variances as multiples of the variance of the
// noise.
struct UnitEffects {
  std::vector<double> effect, variance;
};

// Solves matrix x effects = right, the normal equations after the elimination of all other effects. The sums
// of the rows of the matrix are 0. Returns nothing if the values do not determine the differences between all
// units.
std::optional<UnitEffects> SolveUnits(Matrix matrix, const std::vector<double>& right);

struct SlowestUnit {
  int unit = 0;
  double effect = 0;  // effect of the unit on the logarithm, relative to the mean of the units
  double half = 0;    // half the width of the interval of `effect`
  int repeats = 0;    // number of repeats in which the unit took part
};

// Returns the unit with the largest effect among those whose interval is above 0. If there is none, returns the
// unit with the largest effect. The intervals hold for all units at once, so each of them may be chosen. Does
// not set `repeats`. `squares` is the sum of the squares of the residuals, and `df` their degrees of freedom.
SlowestUnit LargestEffect(const UnitEffects& effects, double squares, double df, double confidence);

// Returns the message without the name of the unit.
scalelab::v1::SlowestPart ToSlowestPart(const SlowestUnit& slowest, int units);

}  // namespace scalelab::analysis
