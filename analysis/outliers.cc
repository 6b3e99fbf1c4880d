#include "analysis/outliers.h"

#include <algorithm>
#include <cmath>

#include "analysis/statistics.h"

namespace scalelab::analysis {
namespace {

constexpr double kLimit = 5 * 1.4826;
constexpr double kLeastDf = 6;

}  // namespace

std::vector<std::vector<Outlier>> FindOutliers(const std::vector<const Sample*>& cells, int blocks) {
  std::vector<std::vector<Outlier>> outliers(cells.size());
  std::vector<std::vector<double>> residuals(cells.size());
  size_t values = 0, used = 0;
  const auto subtract_cells = [&] {
    for (std::vector<double>& residual : residuals) {
      const double median = Median(residual);
      for (double& r : residual) r -= median;
    }
  };
  std::vector<std::vector<double>> of_block(blocks);
  for (size_t c = 0; c < cells.size(); ++c) {
    residuals[c].reserve(cells[c]->size());
    for (const double value : cells[c]->value) residuals[c].push_back(std::log(value));
    values += cells[c]->size();
    used += cells[c]->size() > 0 ? 1 : 0;
  }
  subtract_cells();
  for (std::vector<double>& block : of_block) block.reserve(used);
  for (size_t c = 0; c < cells.size(); ++c) {
    for (size_t i = 0; i < cells[c]->size(); ++i) of_block[cells[c]->block[i]].push_back(residuals[c][i]);
  }
  std::vector<double> block_medians;
  double occupied = 0;
  for (std::vector<double>& block : of_block) {
    occupied += block.empty() ? 0 : 1;
    block_medians.push_back(Median(std::move(block)));
  }
  const double df = static_cast<double>(values) - static_cast<double>(used) - occupied + 1;
  if (df < kLeastDf) return outliers;
  for (size_t c = 0; c < cells.size(); ++c) {
    for (size_t i = 0; i < cells[c]->size(); ++i) residuals[c][i] -= block_medians[cells[c]->block[i]];
  }
  subtract_cells();
  std::vector<double> sizes;
  sizes.reserve(values);
  for (const std::vector<double>& residual : residuals) {
    for (const double r : residual) sizes.push_back(std::abs(r));
  }
  const auto middle = sizes.begin() + static_cast<std::ptrdiff_t>(static_cast<double>(values) - df / 2);
  std::nth_element(sizes.begin(), middle, sizes.end());
  if (*middle <= 0) return outliers;
  for (size_t c = 0; c < cells.size(); ++c) {
    for (size_t i = 0; i < residuals[c].size(); ++i) {
      if (std::abs(residuals[c][i]) > kLimit * *middle) outliers[c].push_back({i, residuals[c][i]});
    }
  }
  return outliers;
}

}  // namespace scalelab::analysis
