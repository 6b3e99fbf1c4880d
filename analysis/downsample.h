// Downsampling with largest triangle three buckets (S. Steinarsson, "Downsampling Time Series for
// Visual Representation", 2013).
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

namespace scalelab::analysis {

// Returns the ascending indices of at most `count` points of (x, y) that keep the shape of the curve. They
// include the last point, and the first point if `count` is at least 2. A NaN counts as the value before it.
std::vector<size_t> Downsample(const std::vector<double>& x, const std::vector<double>& y, size_t count);

// Chooses the points that Downsample chooses, one at a time, from a series that need not be in memory. It reads the
// series twice, with the first read one bucket ahead of the second.
class Downsampler {
 public:
  // `size` is the number of points of the series, `count` the number of points to choose. Requires 1 <= count < size.
  Downsampler(size_t size, size_t count)
      : size_(size),
        count_(count),
        width_(count < 3 ? 0 : static_cast<double>(size - 2) / static_cast<double>(count - 2)) {}

  // Returns whether all points were chosen.
  bool done() const { return chosen_ == count_; }
  // Returns the next point. Requires that not all were chosen. `ahead(i)` and `at(i)` return point i, an object with
  // the numbers x and y. Each of the two is called with larger and larger indices.
  template <class Ahead, class At>
  auto Next(const Ahead& ahead, const At& at) {
    if (chosen_ + 1 == count_) {
      ++chosen_;
      return at(size_ - 1);
    }
    if (chosen_ == 0) {
      ++chosen_;
      const auto first = at(0);
      last_x_ = first.x;
      last_y_ = std::isnan(first.y) ? 0 : first.y;
      return first;
    }
    const size_t bucket = chosen_++ - 1;
    const size_t begin = BeginOf(bucket), end = BeginOf(bucket + 1);
    // The third corner of the triangle: the mean of the next bucket, or the last point for the last bucket.
    const size_t next_end = bucket + 1 < count_ - 2 ? BeginOf(bucket + 2) : size_;
    double mean_x = 0, mean_y = 0;
    size_t finite = 0;
    for (size_t i = end; i < next_end; ++i) {
      const auto point = ahead(i);
      mean_x += point.x;
      if (!std::isnan(point.y)) mean_y += point.y, ++finite;
    }
    mean_x /= static_cast<double>(next_end - end);
    mean_y = finite == 0 ? last_y_ : mean_y / static_cast<double>(finite);
    // Twice the area of the triangle is a linear function of the point, so compute its coefficients once
    // for the bucket.
    const double a = last_x_ - mean_x, b = mean_y - last_y_;
    auto best = at(begin);
    double best_area = -1, neighbour = last_y_;
    for (size_t i = begin; i < end; ++i) {
      const auto point = i == begin ? best : at(i);
      const double value = std::isnan(point.y) ? neighbour : point.y;
      const double area = std::abs(a * (value - last_y_) - (last_x_ - point.x) * b);
      if (area > best_area) best_area = area, best = point;
      neighbour = value;
    }
    last_x_ = best.x;
    if (!std::isnan(best.y)) last_y_ = best.y;
    return best;
  }

 private:
  // The inner points are divided into count - 2 buckets of equal size. Returns the index of the first point of one.
  size_t BeginOf(size_t bucket) const {
    return bucket >= count_ - 2 ? size_ - 1 : 1 + static_cast<size_t>(width_ * static_cast<double>(bucket));
  }

  const size_t size_, count_;
  const double width_;  // of a bucket
  size_t chosen_ = 0;
  double last_x_ = 0, last_y_ = 0;  // of the point that was chosen last
};

}  // namespace scalelab::analysis
