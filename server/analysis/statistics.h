// Statistics: moments, quantiles and Student's t distribution.
#pragma once

#include <cstddef>
#include <limits>
#include <map>
#include <vector>

#include "scalelab/v1/result.pb.h"

namespace scalelab::server {

double Mean(const std::vector<double>& values);
double Median(std::vector<double> values);
// Returns the sample standard deviation (n - 1); 0 for fewer than two values.
double StandardDeviation(const std::vector<double>& values);

// Returns P(T <= t) for Student's t distribution with `df` degrees of freedom.
double StudentCdf(double t, double df);
// Returns the t with StudentCdf(t) = p, for p in (0, 1). Takes tens of microseconds.
double StudentQuantile(double p, double df);
// The same for the normal distribution.
double NormalQuantile(double p);

// Two-sided critical values for one confidence level. Each value is computed once, because a curve uses the
// same few values thousands of times.
class CriticalValues {
 public:
  explicit CriticalValues(double confidence) : confidence_(confidence) {}
  double confidence() const { return confidence_; }
  // Of Student's t distribution with `df` degrees of freedom.
  double T(size_t df) const;
  // Of the normal distribution.
  double Z() const { return NormalQuantile(0.5 + confidence_ / 2); }

 private:
  double confidence_;
  mutable std::map<size_t, double> t_;
};

// Returns the interpolated quantile (Hyndman and Fan 1996, type 7). Reorders `values`, which must
// not be empty.
double Quantile(std::vector<float>& values, double p);

// The limit of a quantity that has none.
inline constexpr double kNoLimit = std::numeric_limits<double>::infinity();

// Returns the mean with its Student's t interval, cut to the possible range [min, max] of the quantity. With
// one value there is no interval; `values` must not be empty.
scalelab::v1::Estimate EstimateMean(const std::vector<double>& values, const CriticalValues& critical,
                                    double min, double max);

}  // namespace scalelab::server
