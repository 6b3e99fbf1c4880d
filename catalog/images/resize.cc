#include "catalog/images/resize.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace scalelab {
namespace {

constexpr int kChannels = 3;

// The source pixels [first, first + count) of each target pixel, and their weights, which sum to 1.
struct Weights {
  std::vector<int> first, count;
  std::vector<float> values;  // the weights: `most` numbers for each target pixel
  int most = 0;

  const float* of(int target) const { return values.data() + static_cast<size_t>(target) * most; }
};

Weights TriangleWeights(double begin, double length, int source_length, int side) {
  const double scale = length / side, support = std::max(scale, 1.0);
  const int low = std::max(0, static_cast<int>(std::floor(begin + 1e-9)));
  const int high = std::min(source_length, static_cast<int>(std::ceil(begin + length - 1e-9)));
  Weights weights;
  weights.most = static_cast<int>(std::ceil(2 * support)) + 1;
  weights.values.resize(static_cast<size_t>(side) * weights.most);
  for (int target = 0; target < side; ++target) {
    const double center = begin + (target + 0.5) * scale;
    // In a thin region, a target pixel may lie between the centers of two source pixels. It uses at least
    // the nearer one.
    const int first = std::clamp(static_cast<int>(std::ceil(center - support - 0.5)), low, high - 1);
    const int last = std::clamp(static_cast<int>(std::floor(center + support - 0.5)), first, high - 1);
    float* values = weights.values.data() + static_cast<size_t>(target) * weights.most;
    double sum = 0;
    const int count = std::min(last - first + 1, weights.most);
    for (int i = 0; i < count; ++i) {
      const double weight = std::max(0.0, 1 - std::abs(first + i + 0.5 - center) / support);
      values[i] = static_cast<float>(weight);
      sum += weight;
    }
    if (sum <= 0) values[0] = 1, sum = 1;
    for (int i = 0; i < count; ++i) values[i] = static_cast<float>(values[i] / sum);
    weights.first.push_back(first);
    weights.count.push_back(count);
  }
  return weights;
}

}  // namespace

void ResizeRegion(const Image& image, const ImageRegion& region, int side, uint8_t* out) {
  const Weights across = TriangleWeights(region.left, region.width, image.size.width, side);
  const Weights down = TriangleWeights(region.top, region.height, image.size.height, side);
  const int first_row = down.first.front(), last_row = down.first.back() + down.count.back();
  const size_t stride = static_cast<size_t>(side) * kChannels;
  std::vector<float> narrow((last_row - first_row) * stride);  // rows of the region at the target's width
  for (int y = first_row; y < last_row; ++y) {
    const uint8_t* row = image.rgb.data() + static_cast<size_t>(y) * image.size.width * kChannels;
    float* to = narrow.data() + (y - first_row) * stride;
    for (int x = 0; x < side; ++x, to += kChannels) {
      const uint8_t* pixel = row + static_cast<size_t>(across.first[x]) * kChannels;
      const float* weight = across.of(x);
      float red = 0, green = 0, blue = 0;
      for (int i = 0; i < across.count[x]; ++i, pixel += kChannels) {
        red += weight[i] * pixel[0];
        green += weight[i] * pixel[1];
        blue += weight[i] * pixel[2];
      }
      to[0] = red, to[1] = green, to[2] = blue;
    }
  }
  std::vector<float> sums(stride);
  for (int y = 0; y < side; ++y, out += stride) {
    std::fill(sums.begin(), sums.end(), 0.5f);  // 0.5 for rounding
    for (int i = 0; i < down.count[y]; ++i) {
      const float* row = narrow.data() + (down.first[y] + i - first_row) * stride;
      const float weight = down.of(y)[i];
      for (size_t x = 0; x < stride; ++x) sums[x] += weight * row[x];
    }
    for (size_t x = 0; x < stride; ++x) out[x] = static_cast<uint8_t>(std::clamp(sums[x], 0.0f, 255.0f));
  }
}

}  // namespace scalelab
