#include "analysis/bootstrap.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "analysis/statistics.h"

namespace scalelab::analysis {
namespace {

// The random generator SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): fast, and the same on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  // Returns a uniform number below `n`; the bias of the multiplication is below 2^-20 for any
  // number of blocks.
  uint32_t Below(uint32_t n) {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return static_cast<uint32_t>(((z ^ (z >> 31)) >> 32) * n >> 32);
  }

 private:
  uint64_t state_;
};

// Adds factor[0] * rows[0] + .. + factor[3] * rows[3] to `sum`. __restrict lets the compiler vectorise the
// loop. Four rows at a time halve the memory traffic, which dominates the cost.
void AddScaled(const float (&factor)[4], const float* const (&rows)[4], float* __restrict sum, size_t n) {
  const float f0 = factor[0], f1 = factor[1], f2 = factor[2], f3 = factor[3];
  const float* __restrict r0 = rows[0], * __restrict r1 = rows[1];
  const float* __restrict r2 = rows[2], * __restrict r3 = rows[3];
  for (size_t i = 0; i < n; ++i) sum[i] += (f0 * r0[i] + f1 * r1[i]) + (f2 * r2[i] + f3 * r3[i]);
}

}  // namespace

BlockBootstrap::BlockBootstrap(int blocks, int resamples, double confidence)
    : blocks_(blocks), resamples_(resamples), critical_(confidence) {}

void BlockBootstrap::Draw() const {
  counts_.assign(static_cast<size_t>(blocks_) * resamples_, 0.0f);
  Random random(20'151'117);
  for (int r = 0; r < resamples_; ++r) {
    for (int i = 0; i < blocks_; ++i) {
      counts_[static_cast<size_t>(random.Below(static_cast<uint32_t>(blocks_))) * resamples_ + r] += 1.0f;
    }
  }
}

std::vector<float> BlockBootstrap::RelativeMeans(const Sample& sample) const {
  absl::call_once(drawn_, [&] { Draw(); });
  const size_t n = static_cast<size_t>(resamples_);
  const double mean = Mean(sample.value);
  // Sums deviations from the mean instead of values, so that single precision is sufficient.
  const auto weighted_sum = [&](auto weight_of) {
    std::vector<float> sums(n, 0.0f);
    for (size_t begin = 0; begin < sample.size(); begin += 4) {
      float factor[4] = {0, 0, 0, 0};
      const float* rows[4] = {counts_.data(), counts_.data(), counts_.data(), counts_.data()};
      for (size_t i = begin; i < std::min(begin + 4, sample.size()); ++i) {
        factor[i - begin] = static_cast<float>(weight_of(i));
        rows[i - begin] = &counts_[sample.block[i] * n];
      }
      AddScaled(factor, rows, sums.data(), n);
    }
    return sums;
  };
  std::vector<float> sums = weighted_sum([&](size_t i) { return sample.value[i] / mean - 1; });
  if (static_cast<int>(sample.size()) == blocks_) {
    const float scale = 1.0f / static_cast<float>(blocks_);
    for (float& v : sums) v = 1.0f + v * scale;
    return sums;
  }
  const std::vector<float> drawn = weighted_sum([](size_t) { return 1.0; });
  for (size_t r = 0; r < n; ++r) {
    sums[r] = drawn[r] > 0 ? 1.0f + sums[r] / drawn[r] : std::numeric_limits<float>::quiet_NaN();
  }
  return sums;
}

double BlockBootstrap::Widening(size_t n) const {
  const double count = static_cast<double>(n);
  return critical_.T(n - 1) * std::sqrt(count / (count - 1)) / critical_.Z();
}

std::optional<BlockBootstrap::Interval> BlockBootstrap::Ratio(const Sample& a, const Sample& b,
                                                              const std::vector<float>& a_means,
                                                              const std::vector<float>& b_means) const {
  const size_t n = std::min(a.size(), b.size());
  const double a_mean = Mean(a.value), b_mean = Mean(b.value);
  if (n < 2 || a_mean <= 0 || b_mean <= 0) return std::nullopt;
  if (!Resamples(n) || a_means.empty() || b_means.empty()) return Linearised(a, b, a_mean, b_mean);
  std::vector<float> ratios;
  ratios.reserve(a_means.size());
  for (size_t r = 0; r < a_means.size(); ++r) {
    const float ratio = a_means[r] / b_means[r];
    if (ratio > 0) ratios.push_back(ratio);  // false for NaN
  }
  if (ratios.size() < a_means.size() / 2) return Linearised(a, b, a_mean, b_mean);
  const double low = std::log(Quantile(ratios, 0.5 - critical_.confidence() / 2));
  const double high = std::log(Quantile(ratios, 0.5 + critical_.confidence() / 2));
  const double ratio = a_mean / b_mean, factor = Widening(n);
  return Interval{ratio * std::exp(factor * low), ratio * std::exp(factor * high), ratio};
}

std::optional<BlockBootstrap::Interval> BlockBootstrap::RatioOfDifferences(const Sample& a, const Sample& b,
                                                                           const Sample& c) const {
  const size_t n = c.size();
  if (n < 2) return std::nullopt;
  std::vector<double> above, below;
  for (size_t i = 0; i < n; ++i) {
    above.push_back(a.value[i] - c.value[i]);
    below.push_back(b.value[i] - c.value[i]);
  }
  const double margin = critical_.T(n - 1) * StandardDeviation(below) / std::sqrt(static_cast<double>(n));
  if (Mean(below) <= margin) return std::nullopt;
  if (!Resamples(n)) return Fieller(above, below);
  const std::vector<float> as = RelativeMeans(a), bs = RelativeMeans(b), cs = RelativeMeans(c);
  const double a_mean = Mean(a.value), b_mean = Mean(b.value), c_mean = Mean(c.value);
  std::vector<float> ratios;
  ratios.reserve(cs.size());
  for (size_t r = 0; r < cs.size(); ++r) {
    const double ratio = (a_mean * as[r] - c_mean * cs[r]) / (b_mean * bs[r] - c_mean * cs[r]);
    if (std::isfinite(ratio)) ratios.push_back(static_cast<float>(ratio));
  }
  if (ratios.size() < cs.size() / 2) return Fieller(above, below);
  const double ratio = Mean(above) / Mean(below), factor = Widening(n);
  const double low = Quantile(ratios, 0.5 - critical_.confidence() / 2);
  const double high = Quantile(ratios, 0.5 + critical_.confidence() / 2);
  return Interval{ratio + factor * (low - ratio), ratio + factor * (high - ratio), ratio};
}

BlockBootstrap::Interval BlockBootstrap::Fieller(const std::vector<double>& numerators,
                                                 const std::vector<double>& denominators) const {
  const size_t n = numerators.size();
  const double x = Mean(numerators), y = Mean(denominators), t = critical_.T(n - 1);
  // Variances and covariance of the means, over y^2.
  double xx = 0, xy = 0, yy = 0;
  for (size_t i = 0; i < n; ++i) {
    const double dx = (numerators[i] - x) / y, dy = (denominators[i] - y) / y;
    xx += dx * dx;
    xy += dx * dy;
    yy += dy * dy;
  }
  const double scale = 1 / (static_cast<double>(n) * static_cast<double>(n - 1));
  xx *= scale, xy *= scale, yy *= scale;
  const double ratio = x / y, g = t * t * yy;  // if g < 1, the interval of the denominator is above 0
  const double middle = (ratio - t * t * xy) / (1 - g);
  const double root = xx - 2 * ratio * xy + ratio * ratio * yy - (g * xx - t * t * xy * xy);
  const double half = t * std::sqrt(std::max(root, 0.0)) / (1 - g);
  return {middle - half, middle + half, ratio};
}

BlockBootstrap::Interval BlockBootstrap::Linearised(const Sample& a, const Sample& b, double a_mean,
                                                    double b_mean) const {
  // Influence of each block on log(mean(a) / mean(b)). A block in both samples gets the difference, so
  // common effects cancel.
  const double a_weight = 1 / (a_mean * static_cast<double>(a.size()));
  const double b_weight = 1 / (b_mean * static_cast<double>(b.size()));
  const double a_offset = 1 / static_cast<double>(a.size()), b_offset = 1 / static_cast<double>(b.size());
  double variance = 0;
  const bool complete = a.block == b.block;  // the usual case, much faster than the merge below
  for (size_t i = 0; complete && i < a.size(); ++i) {
    const double influence = (a.value[i] * a_weight - a_offset) - (b.value[i] * b_weight - b_offset);
    variance += influence * influence;
  }
  for (size_t i = 0, j = 0; !complete && (i < a.size() || j < b.size());) {
    const bool in_a = i < a.size() && (j == b.size() || a.block[i] <= b.block[j]);
    const bool in_b = j < b.size() && (i == a.size() || b.block[j] <= a.block[i]);
    double influence = 0;
    if (in_a) influence += a.value[i] * a_weight - a_offset;
    if (in_b) influence -= b.value[j] * b_weight - b_offset;
    i += in_a ? 1 : 0;
    j += in_b ? 1 : 0;
    variance += influence * influence;
  }
  // n - 1 of the smaller sample corrects the variance and is the number of degrees of freedom. This is exact
  // for pairs and conservative when some blocks are missing.
  const size_t smaller = std::min(a.size(), b.size());
  const double n = static_cast<double>(smaller);
  const double half = critical_.T(smaller - 1) * std::sqrt(variance * n / (n - 1));
  const double ratio = a_mean / b_mean;
  return Interval{ratio * std::exp(-half), ratio * std::exp(half), ratio};
}

}  // namespace scalelab::analysis
