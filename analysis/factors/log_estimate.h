// Estimates of positive quantities, on the logarithmic scale, and of ratios of means.
#pragma once

#include <optional>
#include <vector>

#include "analysis/distributions.h"
#include "scalelab/v1/result.pb.h"

namespace scalelab::analysis {

// Returns the geometric mean. `values` are positive and not empty.
double GeometricMean(const std::vector<double>& values);
// Returns the geometric mean with Student's t interval of the logarithms, cut to at most `max`. With one value there is
// no interval. `values` are positive and not empty.
scalelab::v1::Estimate EstimateGeometricMean(std::vector<double> values, const CriticalValues& critical,
                                             double max);

// The confidence set of a ratio of two means.
struct RatioInterval {
  double low = 0, high = 0;
};

// Returns the interval of mean(numerator) / mean(denominator) of pairs by Fieller's theorem (1954); nothing with fewer
// than two pairs, or if the denominator cannot be distinguished from 0, so that the interval has no end.
std::optional<RatioInterval> FiellerInterval(const std::vector<double>& numerator,
                                             const std::vector<double>& denominator,
                                             const CriticalValues& critical);

}  // namespace scalelab::analysis
