// Statistics of samples: moments and quantiles.
#pragma once

#include <cstddef>
#include <limits>
#include <vector>

#include "analysis/distributions.h"
#include "scalelab/v1/result.pb.h"

namespace scalelab::analysis {

double Mean(const std::vector<double>& values);
double Median(std::vector<double> values);
// Returns the sample standard deviation (n - 1); 0 for fewer than two values.
double StandardDeviation(const std::vector<double>& values);
// As above, with the mean of the values.
double StandardDeviation(const std::vector<double>& values, double mean);

// Returns the interpolated quantile (Hyndman and Fan 1996, type 7). Reorders `values`, which must
// not be empty.
double Quantile(std::vector<float>& values, double p);

// For `min` or `max`, if the quantity has no such limit.
inline constexpr double kNoLimit = std::numeric_limits<double>::infinity();

// Returns the mean with its Student's t interval, cut to the possible range [min, max] of the quantity. With
// one value there is no interval; `values` must not be empty.
scalelab::v1::Estimate EstimateMean(const std::vector<double>& values, const CriticalValues& critical,
                                    double min, double max);

}  // namespace scalelab::analysis
