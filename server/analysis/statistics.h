// Small statistics: moments, quantiles and Student's t.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "scalelab/v1/result.pb.h"

namespace scalelab::server {

double Mean(const std::vector<double>& values);
double Median(std::vector<double> values);
// Sample standard deviation (n - 1); 0 below two values.
double StandardDeviation(const std::vector<double>& values);

// P(T <= t) of Student's t with `df` degrees of freedom.
double StudentCdf(double t, double df);
// The t with StudentCdf(t) = p, for p in (0, 1); takes tens of microseconds.
double StudentQuantile(double p, double df);
// The same of the normal distribution.
double NormalQuantile(double p);

// Two-sided critical values of one confidence, each computed once: a curve asks for the same few a thousand
// times.
class CriticalValues {
 public:
  explicit CriticalValues(double confidence) : confidence_(confidence) {}
  double confidence() const { return confidence_; }
  // Of Student's t with `df` degrees of freedom.
  double T(size_t df) const;
  // Of the normal distribution.
  double Z() const { return NormalQuantile(0.5 + confidence_ / 2); }

 private:
  double confidence_;
  mutable std::map<size_t, double> t_;
};

// Interpolated quantile of `values` (Hyndman and Fan 1996, type 7), which it reorders. Not empty.
double Quantile(std::vector<float>& values, double p);

// Mean with Student's t interval, the right one for few repeats of a mean, cut to [min, max], between which
// the quantity must lie. One value has no spread; `values` must not be empty.
scalelab::v1::Estimate EstimateMean(const std::vector<double>& values, const CriticalValues& critical,
                                    double min, double max);

}  // namespace scalelab::server
