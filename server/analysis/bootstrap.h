// Intervals of ratios of means over blocks.
//
// All cells of a study are run in blocks: repeat r of every cell belongs to block r. What a block has in
// common (a warm machine, a busy network) moves a cell and its baseline together and must cancel in their
// ratio, while the baseline's own noise must not: so the unit of resampling is the block, drawn once for all
// cells.
//
// Which interval:
// - From 8 to 512 blocks: percentile bootstrap, on the scale of the logarithm widened by t(n-1) sqrt(n / (n -
// 1)) / z.
//   A plain percentile interval is too narrow by just that factor (it has n where a variance has n - 1, and
//   no term for the variance being estimated; Hesterberg, The American Statistician 69, 2015): at n = 10 that
//   is 22%.
// - Fewer: resamples of two to seven blocks have too few distinct values for percentiles to mean anything.
// The log of the
//   ratio is linearised in the blocks, its variance taken from the blocks' influences, and the interval is
//   Student's t on the logarithm. That is the delta method; for pairs it is Fieller's interval to first
//   order.
// - More: the same; resampling thousands of blocks says nothing new.
// With 95% asked for, both cover the truth in 94.0 to 95.5% of simulated studies of 2 to 20 blocks with noise
// of 5% in cell, baseline and block (tests/unit/server/analysis/coverage_test.cc keeps them between 92 and
// 98%).
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "server/analysis/statistics.h"

namespace scalelab::server {

// The values of one cell and the block of each; blocks rise.
struct Sample {
  std::vector<int> block;
  std::vector<double> value;

  size_t size() const { return value.size(); }
};

// Draws of blocks, made once and used for every cell of a study. Same input, same draws.
class BlockBootstrap {
 public:
  // `blocks`: their number; `resamples`: of them.
  BlockBootstrap(int blocks, int resamples, double confidence);

  // Whether ratios of samples of at least `n` values are bootstrapped.
  bool Resamples(size_t n) const { return n >= 8 && n <= 512 && resamples_ > 1; }
  // Mean of the sample in each resample over its mean; NaN where a resample has none of its blocks.
  std::vector<float> RelativeMeans(const Sample& sample) const;

  struct Interval {
    double low, high;
  };
  // Interval of mean(a) / mean(b); absent with fewer than two values on either side. `a_means` and `b_means`
  // are their RelativeMeans, or empty where they are not resampled.
  std::optional<Interval> Ratio(const Sample& a, const Sample& b, const std::vector<float>& a_means,
                                const std::vector<float>& b_means) const;

  // Interval of (mean(a) - mean(c)) / (mean(b) - mean(c)) of samples with the same blocks, where the
  // denominator is known to be above 0: Resamples() as above but on the scale of the ratio, which may have
  // any sign, otherwise Fieller's (Biometrics 1954), exact for normal differences. Absent with fewer than two
  // blocks, and where that denominator's own interval reaches 0: then any ratio is possible.
  std::optional<Interval> RatioOfDifferences(const Sample& a, const Sample& b, const Sample& c) const;

  // Factor that widens a percentile interval of n blocks, see above.
  double Widening(size_t n) const;
  const CriticalValues& critical() const { return critical_; }
  int blocks() const { return blocks_; }

 private:
  Interval Fieller(const std::vector<double>& numerators, const std::vector<double>& denominators) const;
  std::optional<Interval> Linearised(const Sample& a, const Sample& b) const;
  void Draw() const;

  int blocks_, resamples_;
  CriticalValues critical_;
  // How often each block is drawn: [block][resample]. Made at the first use: small studies never need it.
  mutable std::vector<float> counts_;
};

}  // namespace scalelab::server
