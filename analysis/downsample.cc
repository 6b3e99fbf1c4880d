#include "analysis/downsample.h"

#include <algorithm>
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
  struct Point {
    double x, y;
    size_t index;
  };
  const auto at = [&](size_t i) { return Point{x[i], y[i], i}; };
  chosen.reserve(count);
  for (Downsampler points(n, count); !points.done();) chosen.push_back(points.Next(at, at).index);
  return chosen;
}

}  // namespace scalelab::analysis
