#include "analysis/downsample.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace scalelab::analysis {

std::vector<size_t> Downsample(const std::vector<double>& x, const std::vector<double>& y, size_t count) {
  const size_t n = std::min(x.size(), y.size());
  std::vector<size_t> chosen;
  if (n <= count) {
    chosen.resize(n);
    std::iota(chosen.begin(), chosen.end(), size_t{0});
    return chosen;
  }
  if (count == 0) return {};
  if (count == 1) return {n - 1};
  if (count == 2) return {0, n - 1};
  // The inner points are divided into count - 2 buckets of equal size.
  const double width = static_cast<double>(n - 2) / static_cast<double>(count - 2);
  const auto begin_of = [&](size_t bucket) {
    return bucket >= count - 2 ? n - 1 : 1 + static_cast<size_t>(width * static_cast<double>(bucket));
  };
  chosen.reserve(count);
  chosen.push_back(0);
  double last_x = x[0];
  double last_y = std::isnan(y[0]) ? 0 : y[0];
  for (size_t bucket = 0; bucket < count - 2; ++bucket) {
    const size_t begin = begin_of(bucket), end = begin_of(bucket + 1);
    // The third corner of the triangle: the mean of the next bucket, or the last point for the last bucket.
    const size_t next_begin = end, next_end = bucket + 1 < count - 2 ? begin_of(bucket + 2) : n;
    double mean_x = 0, mean_y = 0;
    size_t finite = 0;
    for (size_t i = next_begin; i < next_end; ++i) {
      mean_x += x[i];
      if (!std::isnan(y[i])) mean_y += y[i], ++finite;
    }
    mean_x /= static_cast<double>(next_end - next_begin);
    mean_y = finite == 0 ? last_y : mean_y / static_cast<double>(finite);
    // Twice the area of the triangle is a linear function of the point, so compute its coefficients once
    // for the bucket.
    const double a = last_x - mean_x, b = mean_y - last_y;
    size_t best = begin;
    double best_area = -1, neighbour = last_y;
    for (size_t i = begin; i < end; ++i) {
      const double value = std::isnan(y[i]) ? neighbour : y[i];
      const double area = std::abs(a * (value - last_y) - (last_x - x[i]) * b);
      if (area > best_area) best_area = area, best = i;
      neighbour = value;
    }
    chosen.push_back(best);
    last_x = x[best];
    if (!std::isnan(y[best])) last_y = y[best];
  }
  chosen.push_back(n - 1);
  return chosen;
}

}  // namespace scalelab::analysis
