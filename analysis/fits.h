// Fits scalability laws to speedups.
//
// Both laws are linear in their parameters when they are written for y = p / (p0 S), the work of all ranks per unit of
// work relative to that at the base p0:
//   Amdahl  D(p) = 1 + s (p - 1)                   S(p) = p / D(p)
//   USL     D(p) = 1 + a (p - 1) + b p (p - 1)     (Gunther, Guerrilla Capacity Planning, 2007)
//   y D(p0) = D(p)
// so that weighted least squares, with weights 1 / y^2 for errors that are a share of the value, has a closed form.
// Intervals are computed from estimates without constraints and cut to the possible range at the end, because
// the interval of an estimate that is limited to at least 0 would be too narrow. The shown parameters have the
// smallest error of all parameters in the possible range.
#pragma once

#include <optional>
#include <vector>

#include "analysis/ratios.h"
#include "scalelab/v1/result.pb.h"

namespace scalelab::analysis {

// Parameters of a least squares fit to speedups, cut to their range. They are not negative.
struct AmdahlFit {
  double serial_fraction = 0;  // 0 to 1
};
struct UslFit {
  double contention = 0, coherency = 0;
};

// Fit a law to `speedups[i]` at `ranks[i]`, which are relative to `base_ranks`.
AmdahlFit FitAmdahl(const std::vector<double>& ranks, const std::vector<double>& speedups, double base_ranks);
UslFit FitUsl(const std::vector<double>& ranks, const std::vector<double>& speedups, double base_ranks);

// Returns the fits with intervals and tests: Amdahl's law with at least 3 distinct numbers of ranks, the USL with at
// least 4. `cells` are those of the series among those of `ratios`; cells[i] has ranks[i] and is not empty. Speedups are
// relative to cells[base].
//
// If all cells have the same 8 to 64 blocks, the intervals use the same draws of blocks as those of the ratios, and
// are widened in the same way. Otherwise they are Student's t intervals with the jackknife's deviation over blocks
// (Efron and Tibshirani 1993, chapter 11).
//
// The test of lack of fit (Draper and Smith, Applied Regression Analysis, section 1.5, for a nonlinear law: Neill, Annals
// of Statistics 16, 1988) compares the deviations of the points from the law with the noise of the points.
std::vector<scalelab::v1::ScalingFit> FitLaws(const std::vector<double>& ranks,
                                              const std::vector<size_t>& cells, size_t base,
                                              CellRatios& ratios);

}  // namespace scalelab::analysis
