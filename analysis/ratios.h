// Ratios of the means of cells, with intervals.
//
// With eight common blocks or more, a ratio is the ratio of the means over the blocks that both cells have,
// and its interval is that of bootstrap.h. With fewer common blocks, the ratio comes from the model of
// cells and blocks (block_model.h), which pools the noise of all cells and uses every value. In a study whose
// number of blocks depends on the results (`paired`), the interval is always that of Student's t for the
// logarithms of the ratios within blocks, see precision.h.
#pragma once

#include <optional>
#include <vector>

#include "absl/base/call_once.h"
#include "analysis/block_model.h"
#include "analysis/bootstrap.h"
#include "scalelab/v1/result.pb.h"

namespace scalelab::analysis {

// Confidence of the intervals of comparisons and advice, unless a study has adaptive_repeats (precision.h).
inline constexpr double kConfidence = 0.95;
inline constexpr int kResamples = 2000;

// Thread-safe.
class CellRatios {
 public:
  // Values must be above 0, and blocks below those of the bootstrap. Both must outlive this object.
  CellRatios(std::vector<const Sample*> cells, const BlockBootstrap& bootstrap, bool paired = false)
      : cells_(std::move(cells)),
        bootstrap_(bootstrap),
        paired_(paired),
        means_(cells_.size()),
        has_means_(cells_.size()) {}

  struct Ratio {
    // The ratio with its interval; median and deviation are those of the ratios within blocks.
    scalelab::v1::Estimate estimate;
    double error = 0;  // standard error of the logarithm of the ratio; 0: unknown
    double df = 0;     // its degrees of freedom
    int common = 0;    // number of blocks that both cells have
  };
  // Returns cell a / cell b; nothing if the cells cannot be compared, because no blocks connect them. The deviation
  // can be left out, because its computation takes up to a third of the time.
  std::optional<Ratio> Compare(size_t a, size_t b, bool deviation = true);
  // Returns whether Compare returns a ratio of these two cells, which have values.
  bool MayCompare(size_t a, size_t b);

  // Returns the relative difference of two cells with this number of repeats that is found with a probability
  // of 80% (Cohen, Statistical Power Analysis, 1988); 0 if the noise is unknown.
  double NoiseFloor(double repeats);

  const Sample& sample(size_t cell) const { return *cells_[cell]; }
  // Returns the model of all cells; null with more than BlockModel::kMaxBlocks blocks.
  const BlockModel* model();
  const BlockBootstrap& bootstrap() const { return bootstrap_; }
  // Returns the RelativeMeans of the cell; empty if cells of its size are not resampled.
  const std::vector<float>& MeansOf(size_t cell);

 private:
  std::optional<Ratio> ByBlocks(size_t a, size_t b);
  std::optional<Ratio> ByModel(size_t a, size_t b);
  // `ratios`: of the two cells, within the blocks that both have.
  std::optional<Ratio> ByPairs(std::vector<double> ratios) const;

  const std::vector<const Sample*> cells_;
  const BlockBootstrap& bootstrap_;
  const bool paired_;
  // The following members are computed at their first use.
  std::vector<std::vector<float>> means_;  // by cell
  std::vector<absl::once_flag> has_means_;
  std::optional<BlockModel> model_;
  absl::once_flag has_model_;
};

}  // namespace scalelab::analysis
