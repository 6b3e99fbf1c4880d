// The two-way model of a study: log(value) = cell + block + drift * time + noise.
//
// A cell's effect is what the study measures. A block's effect is what all cells of a block (a repeat) share: a warm
// machine, a busy network. The drift is a linear change of the machine over the whole study, which randomised order turns
// into noise within blocks. The effects are estimated by least squares on all values of all cells, so that a value that is
// missing neither biases a comparison nor makes it impossible (Scheffe, The Analysis of Variance, 1959, chapter 4).
//
// The noise of two cells a and b is estimated in two ways: s^2 pools the residuals of all cells, v_own is the
// variance of the differences log(a) - log(b) within blocks. Pooling has more degrees of freedom; but cells
// may differ in noise, and large world sizes usually have more. The squared error of log(a) - log(b) is
// therefore max(2 s^2, v_own) / n, with nu = min(df, c (n - 1) / 2) degrees of freedom, where c is the number
// of cells and df those of s^2. For two cells this is Student's t interval for pairs. nu is a heuristic;
// tests/unit/analysis/coverage_test.cc and `scalelab-bench coverage` verify that about 95% of the intervals
// are right for many kinds of noise; docs/users/reading-a-curve-statistics.md has the figures.
#pragma once

#include <optional>
#include <vector>

#include "analysis/sample.h"

namespace scalelab::analysis {

class BlockModel {
 public:
  // The matrix of the block effects has the square of this number of elements.
  static constexpr int kMaxBlocks = 200;

  // Estimates the effects. Values must be above 0; a sample may be empty. Blocks are numbered from 0 to below `blocks`,
  // which must be at most kMaxBlocks. The drift is part of the model if every value has a time, the cells are not in the same
  // order in each block, there are at least three blocks, and two degrees of freedom remain.
  BlockModel(const std::vector<const Sample*>& cells, int blocks);

  // Number of degrees of freedom of the noise; 0: the noise is unknown.
  double df() const { return df_; }
  // Degrees of freedom for the comparison of two cells, see above.
  double comparison_df() const { return comparison_df_; }
  // Variance of the noise of the logarithm of one value, pooled over the cells.
  double variance() const { return variance_; }
  // Variance of the noise of one cell, but at least the pooled one.
  double VarianceOf(size_t cell) const;
  bool has_drift() const { return drift_; }
  // Returns the residual of each value of a cell.
  const std::vector<double>& Residuals(size_t cell) const { return cells_[cell].residual; }

  // The effect of one cell minus that of another.
  struct Difference {
    double ratio = 1;  // exp(log_ratio)
    double log_ratio = 0;
    double error = 0;  // standard error of log_ratio
    double df = 0;     // degrees of freedom of the error; 0: it is unknown
    int common = 0;    // number of blocks that both cells have
  };
  // Returns nothing if no chain of shared blocks connects the two cells, because a difference of the blocks cannot be
  // distinguished from one of the cells.
  std::optional<Difference> Compare(size_t a, size_t b) const;

 private:
  struct Cell {
    const Sample* sample = nullptr;
    double reference = 1;                   // scale of y, chosen so that equal values give exact ratios
    std::vector<double> y, time, residual;  // y: logarithm of value / reference
    double mean_y = 0, mean_time = 0;
    int component = -1;  // cells that shared blocks connect have the same number
  };
  void Read(const std::vector<const Sample*>& cells);
  void Connect();
  bool MayDrift() const;
  void Fit(bool drift);
  void Accumulate();
  void Factor();
  void Solve();
  void EstimateNoise();
  double TimeWithinBlocks() const;
  double MeanEffect(const Cell& cell) const;
  double Leverage(const Cell& a, const Cell& b) const;
  double& At(int row, int column) { return matrix_[static_cast<size_t>(row) * unknowns_ + column]; }
  double At(int row, int column) const { return matrix_[static_cast<size_t>(row) * unknowns_ + column]; }

  const int blocks_;
  std::vector<Cell> cells_;
  bool drift_ = false;
  // The normal equations after the elimination of the cells. Unknowns are the effects of the blocks and,
  // last, the drift. Factor replaces the matrix by L and D of L D L'. A pivot of 0 marks an unknown that the
  // values do not determine. The value of such an unknown is 0.
  int unknowns_ = 0;
  std::vector<double> matrix_, right_, effects_;
  double df_ = 0, variance_ = 0, comparison_df_ = 0;
  double repeated_ = 0;  // number of cells with more than one value
};

}  // namespace scalelab::analysis
