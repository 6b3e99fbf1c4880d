#include "server/analysis/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace scalelab::server {
namespace {

// Computes the continued fraction of the incomplete beta function by Lentz's method (DLMF 8.17.22).
double BetaFraction(double a, double b, double x) {
  constexpr double kTiny = 1e-300;
  const auto guard = [](double v) { return std::abs(v) < kTiny ? kTiny : v; };
  double c = 1, d = 1 / guard(1 - (a + b) * x / (a + 1)), h = d;
  for (int m = 1; m <= 500; ++m) {
    const double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
    d = 1 / guard(1 + even * d);
    c = guard(1 + even / c);
    h *= d * c;
    const double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
    d = 1 / guard(1 + odd * d);
    c = guard(1 + odd / c);
    h *= d * c;
    if (std::abs(d * c - 1) < 1e-15) break;
  }
  return h;
}

// Returns the regularised incomplete beta function.
double IncompleteBeta(double a, double b, double x) {
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  const double front =
      std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) + a * std::log(x) + b * std::log1p(-x));
  return x < (a + 1) / (a + b + 2) ? front * BetaFraction(a, b, x) / a
                                   : 1 - front * BetaFraction(b, a, 1 - x) / b;
}

// Inverts the distribution function of a symmetric distribution by bisection.
template <class Cdf>
double Invert(const Cdf& cdf, double p) {
  if (p < 0.5) return -Invert(cdf, 1 - p);
  double low = 0, high = 1;
  while (cdf(high) < p && high < 1e12) low = high, high *= 2;
  for (int i = 0; i < 200 && high - low > 1e-13 * high; ++i) {
    const double middle = (low + high) / 2;
    (cdf(middle) < p ? low : high) = middle;
  }
  return (low + high) / 2;
}

}  // namespace

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (double v : values) sum += v;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const size_t middle = values.size() / 2;
  std::nth_element(values.begin(), values.begin() + middle, values.end());
  const double upper = values[middle];
  if (values.size() % 2 == 1) return upper;
  return (*std::max_element(values.begin(), values.begin() + middle) + upper) / 2;
}

double StandardDeviation(const std::vector<double>& values) {
  if (values.size() < 2) return 0;
  const double mean = Mean(values);
  double squares = 0;
  for (double v : values) squares += (v - mean) * (v - mean);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

double StudentCdf(double t, double df) {
  const double tail = IncompleteBeta(df / 2, 0.5, df / (df + t * t)) / 2;
  return t > 0 ? 1 - tail : tail;
}

double StudentQuantile(double p, double df) {
  return Invert([df](double t) { return StudentCdf(t, df); }, p);
}

double NormalQuantile(double p) {
  return Invert([](double z) { return std::erfc(-z / std::sqrt(2.0)) / 2; }, p);
}

double Quantile(std::vector<float>& values, double p) {
  const double place = p * static_cast<double>(values.size() - 1);
  const size_t index = static_cast<size_t>(place);
  std::nth_element(values.begin(), values.begin() + index, values.end());
  const double at = values[index];
  if (index + 1 >= values.size()) return at;
  const double above = *std::min_element(values.begin() + index + 1, values.end());
  return at + (place - static_cast<double>(index)) * (above - at);
}

double CriticalValues::T(size_t df) const {
  double& t = t_[df];
  if (t == 0) t = StudentQuantile(0.5 + confidence_ / 2, static_cast<double>(df));
  return t;
}

scalelab::v1::Estimate EstimateMean(const std::vector<double>& values, const CriticalValues& critical,
                                    double min, double max) {
  scalelab::v1::Estimate estimate;
  const double n = static_cast<double>(values.size());
  const double mean = Mean(values);
  estimate.set_mean(mean);
  estimate.set_median(Median(values));
  if (values.size() < 2) return estimate;
  const double deviation = StandardDeviation(values);
  const double half = critical.T(values.size() - 1) * deviation / std::sqrt(n);
  estimate.set_stddev(deviation);
  // If the mean is outside the range, the range is wrong, not the mean.
  estimate.set_low(mean < min ? mean - half : std::max(mean - half, min));
  estimate.set_high(mean > max ? mean + half : std::min(mean + half, max));
  return estimate;
}

}  // namespace scalelab::server
