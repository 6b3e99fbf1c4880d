#include "analysis/factors/log_estimate.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "analysis/statistics.h"

namespace scalelab::analysis {
namespace {

std::vector<double> LogarithmsOf(const std::vector<double>& values) {
  std::vector<double> logs;
  logs.reserve(values.size());
  for (const double value : values) logs.push_back(std::log(value));
  return logs;
}

}  // namespace

double GeometricMean(const std::vector<double>& values) { return std::exp(Mean(LogarithmsOf(values))); }

scalelab::v1::Estimate EstimateGeometricMean(std::vector<double> values, const CriticalValues& critical,
                                             double max) {
  const std::vector<double> logs = LogarithmsOf(values);
  const double mean = Mean(logs), n = static_cast<double>(values.size());
  scalelab::v1::Estimate estimate;
  estimate.set_mean(std::exp(mean));
  if (values.size() > 1) {
    const double half = critical.T(n - 1) * StandardDeviation(logs, mean) / std::sqrt(n);
    estimate.set_stddev(StandardDeviation(values));
    estimate.set_low(std::exp(mean - half));
    estimate.set_high(std::max(std::min(std::exp(mean + half), max), estimate.mean()));
  }
  estimate.set_median(Median(std::move(values)));
  return estimate;
}

std::optional<RatioInterval> FiellerInterval(const std::vector<double>& numerator,
                                             const std::vector<double>& denominator,
                                             const CriticalValues& critical) {
  const size_t size = numerator.size();
  if (size < 2) return std::nullopt;
  const double a = Mean(numerator), b = Mean(denominator), n = static_cast<double>(size);
  double aa = 0, ab = 0, bb = 0;
  for (size_t i = 0; i < size; ++i) {
    aa += (numerator[i] - a) * (numerator[i] - a);
    ab += (numerator[i] - a) * (denominator[i] - b);
    bb += (denominator[i] - b) * (denominator[i] - b);
  }
  // The set contains the ratios r with (a - r b)^2 <= t^2 (v_aa - 2 r v_ab + r^2 v_bb), where v are the
  // variances and the covariance of the means.
  const double t = critical.T(n - 1), scale = t * t / (n * (n - 1));
  const double square = b * b - scale * bb, linear = a * b - scale * ab, constant = a * a - scale * aa;
  const double discriminant = linear * linear - square * constant;
  if (square <= 0 || discriminant < 0) return std::nullopt;
  return RatioInterval{(linear - std::sqrt(discriminant)) / square,
                       (linear + std::sqrt(discriminant)) / square};
}

}  // namespace scalelab::analysis
