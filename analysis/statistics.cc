#include "analysis/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace scalelab::analysis {
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
  return StandardDeviation(values, Mean(values));
}

double StandardDeviation(const std::vector<double>& values, double mean) {
  if (values.size() < 2) return 0;
  double squares = 0;
  for (double v : values) squares += (v - mean) * (v - mean);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
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

scalelab::v1::Estimate EstimateMean(const std::vector<double>& values, const CriticalValues& critical,
                                    double min, double max) {
  scalelab::v1::Estimate estimate;
  const double n = static_cast<double>(values.size());
  const double mean = Mean(values);
  estimate.set_mean(mean);
  estimate.set_median(Median(values));
  if (values.size() < 2) return estimate;
  const double deviation = StandardDeviation(values, mean);
  const double half = critical.T(values.size() - 1) * deviation / std::sqrt(n);
  estimate.set_stddev(deviation);
  // If the mean is outside the range, do not cut the interval: the range is wrong, not the mean.
  estimate.set_low(mean < min ? mean - half : std::max(mean - half, min));
  estimate.set_high(mean > max ? mean + half : std::min(mean + half, max));
  return estimate;
}

}  // namespace scalelab::analysis
