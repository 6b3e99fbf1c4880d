// The block bootstrap, for comparisons of eight blocks or more.
//
// A study runs its cells in blocks: repeat r of every cell belongs to block r. An effect that all cells of a
// block share (a warm machine, a busy network) moves a cell and its baseline together and must cancel in
// their ratio. The noise of the baseline itself must not cancel. Therefore whole blocks are resampled, with
// the same draws for all cells.
//
// - 8 to 64 blocks: percentile bootstrap on the log scale, widened by t(n-1) sqrt(n / (n - 1)) / z. A plain
//   percentile interval is too narrow by this factor: it uses n where a variance has n - 1, and has no term
//   for the estimation of the variance (Hesterberg, The American Statistician 69, 2015). At n = 10 the
//   factor is 22%.
// - Otherwise: the log of the ratio is linearised in the blocks, its variance is computed from the blocks'
//   influences, and the interval is Student's t on the log scale (delta method). Means of more than 64 blocks are so
//   close to normal that resampling gives the same interval at many times the cost. For fewer than eight blocks
//   ratios.h uses the model of block_model.h instead.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/call_once.h"
#include "analysis/sample.h"
#include "analysis/statistics.h"

namespace scalelab::analysis {

// Random draws of blocks, which are the same for every cell of a study. Deterministic and thread-safe.
class BlockBootstrap {
 public:
  static constexpr size_t kMostResampled = 64;  // blocks
  // Blocks of the study from which may be drawn: with 2,000 resamples, the draws take 32 MB.
  static constexpr int kMostDrawnFrom = 4096;

  // Draws `resamples` times from `blocks` blocks.
  BlockBootstrap(int blocks, int resamples, double confidence);

  // Returns whether ratios of samples of at least `n` values use the percentile bootstrap.
  bool Resamples(size_t n) const {
    return n >= 8 && n <= kMostResampled && blocks_ <= kMostDrawnFrom && resamples_ > 1;
  }
  // Returns for each resample the mean of the sample, relative to its overall mean. NaN for a resample
  // without any of its blocks.
  std::vector<float> RelativeMeans(const Sample& sample) const;

  struct Interval {
    double low, high;
    double ratio;  // of the means
  };
  // Returns the interval of mean(a) / mean(b); nothing with fewer than two values on either side. `a_means`
  // and `b_means` are the RelativeMeans of a and b, or empty if Resamples is false.
  std::optional<Interval> Ratio(const Sample& a, const Sample& b, const std::vector<float>& a_means,
                                const std::vector<float>& b_means) const;

  // Returns the interval of (mean(a) - mean(c)) / (mean(b) - mean(c)) of samples with the same blocks. If
  // Resamples, it is the widened percentile bootstrap on the scale of the ratio, which may have any sign;
  // otherwise Fieller's interval (JRSS B 16, 1954), which is exact for normal differences. Returns
  // nothing with fewer than two blocks, and when the interval of the denominator contains 0, because any
  // ratio is then possible.
  std::optional<Interval> RatioOfDifferences(const Sample& a, const Sample& b, const Sample& c) const;

  // Returns the factor that widens a percentile interval of n blocks, see above.
  double Widening(size_t n) const;
  const CriticalValues& critical() const { return critical_; }
  int blocks() const { return blocks_; }

 private:
  Interval Fieller(const std::vector<double>& numerators, const std::vector<double>& denominators) const;
  Interval Linearised(const Sample& a, const Sample& b, double a_mean, double b_mean) const;
  void Draw() const;

  const int blocks_, resamples_;
  const CriticalValues critical_;
  // How often each block is drawn: [block][resample]. Computed at the first use, because small studies
  // never need it.
  mutable absl::once_flag drawn_;
  mutable std::vector<float> counts_;
};

}  // namespace scalelab::analysis
