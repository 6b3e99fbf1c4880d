#include "analysis/distributions.h"

#include <algorithm>
#include <boost/math/distributions/fisher_f.hpp>
#include <boost/math/distributions/normal.hpp>
#include <boost/math/distributions/students_t.hpp>
#include <boost/math/tools/toms748_solve.hpp>
#include <cmath>
#include <vector>

namespace scalelab::analysis {
namespace {

double NormalCdf(double z) { return std::erfc(-z / std::sqrt(2.0)) / 2; }

// Returns P(largest - smallest <= w) of `groups` standard normal numbers: the integral of
// groups phi(z) (Phi(z) - Phi(z - w))^(groups - 1) over z, where z is the largest (Pearson and Hartley, Biometrika 32, 1942).
// The trapezoidal rule converges exponentially, because the integrand is analytic and vanishes at both ends.
double RangeCdf(double w, int groups) {
  constexpr double kStep = 0.2, kEnd = 8.6;
  if (w <= 0) return 0;
  double sum = 0;
  for (double z = -kEnd; z <= kEnd; z += kStep) {
    const double density = std::exp(-z * z / 2);
    sum += density * std::pow(NormalCdf(z) - NormalCdf(z - w), groups - 1);
  }
  return std::min(1.0, groups * sum * kStep / std::sqrt(2 * 3.14159265358979323846));
}

}  // namespace

double StudentCdf(double t, double df) { return boost::math::cdf(boost::math::students_t(df), t); }

double StudentQuantile(double p, double df) { return boost::math::quantile(boost::math::students_t(df), p); }

double NormalQuantile(double p) { return boost::math::quantile(boost::math::normal(), p); }

double FisherTail(double f, double numerator_df, double denominator_df) {
  const boost::math::fisher_f distribution(numerator_df, denominator_df);
  return boost::math::cdf(boost::math::complement(distribution, std::max(f, 0.0)));
}

// Averages the distribution function of the range over the distribution of s. Integrates over u = log(s),
// whose density is proportional to exp(df (u - exp(2 u) / 2)), also with the trapezoidal rule.
double StudentizedRangeCdf(double q, int groups, double df) {
  if (q <= 0) return 0;
  const auto exponent = [df](double u) { return df * (u - std::exp(2 * u) / 2 + 0.5); };
  const double step = std::min(0.1, 0.6 / std::sqrt(2 * df));
  double weights = 0, sum = 0;
  const auto add = [&](double u) {
    const double weight = std::exp(exponent(u));
    weights += weight;
    sum += weight * RangeCdf(q * std::exp(u), groups);
  };
  add(0);
  for (double u = step; exponent(u) > -40; u += step) add(u);
  for (double u = -step; exponent(u) > -40; u -= step) add(u);
  return sum / weights;
}

double StudentizedRangeQuantile(double p, int groups, double df) {
  // With two groups, Q is sqrt(2) |T|.
  if (groups == 2) return std::sqrt(2.0) * StudentQuantile(0.5 + p / 2, df);
  const auto excess = [&](double q) { return StudentizedRangeCdf(q, groups, df) - p; };
  double high = 4, at_high = excess(high);
  while (at_high < 0 && high < 1e6) {
    high *= 2;
    at_high = excess(high);
  }
  std::uintmax_t iterations = 100;
  const auto [below, above] = boost::math::tools::toms748_solve(
      excess, 0.0, high, -p, at_high, boost::math::tools::eps_tolerance<double>(44), iterations);
  return (below + above) / 2;
}

double CriticalValues::T(double df) const {
  absl::MutexLock lock(&mutex_);
  double& t = t_[df];
  if (t == 0) t = StudentQuantile(0.5 + confidence_ / 2, df);
  return t;
}

}  // namespace scalelab::analysis
