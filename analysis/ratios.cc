#include "analysis/ratios.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace scalelab::analysis {
namespace {

constexpr size_t kBlocksToResample = 8;
constexpr double kPower = 0.8;

// Calls `each(i, j)` for the values i of a and j of b that have the same block.
template <typename Each>
void ForEachCommonBlock(const Sample& a, const Sample& b, const Each& each) {
  if (a.block == b.block) {  // the usual case, much faster than the merge below
    for (size_t i = 0; i < a.size(); ++i) each(i, i);
    return;
  }
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (a.block[i] == b.block[j]) {
      each(i++, j++);
    } else {
      ++(a.block[i] < b.block[j] ? i : j);
    }
  }
}

// Returns the ratios within the blocks that both cells have.
std::vector<double> RatiosWithinBlocks(const Sample& a, const Sample& b) {
  std::vector<double> ratios(std::min(a.size(), b.size()));
  size_t common = 0;
  ForEachCommonBlock(a, b, [&](size_t i, size_t j) { ratios[common++] = a.value[i] / b.value[j]; });
  ratios.resize(common);
  return ratios;
}

bool HaveCommonBlocks(const Sample& a, const Sample& b) {
  bool have = false;
  ForEachCommonBlock(a, b, [&](size_t, size_t) { have = true; });
  return have;
}

}  // namespace

const std::vector<float>& CellRatios::MeansOf(size_t cell) {
  absl::call_once(has_means_[cell], [&] {
    if (bootstrap_.Resamples(cells_[cell]->size())) means_[cell] = bootstrap_.RelativeMeans(*cells_[cell]);
  });
  return means_[cell];
}

const BlockModel* CellRatios::model() {
  if (bootstrap_.blocks() > BlockModel::kMaxBlocks) return nullptr;
  absl::call_once(has_model_, [&] { model_.emplace(cells_, bootstrap_.blocks()); });
  return &*model_;
}

double CellRatios::NoiseFloor(double repeats) {
  if (model() == nullptr || model()->df() <= 0) return 0;
  const double df = model()->comparison_df();
  const double t = bootstrap_.critical().T(df) + StudentQuantile(kPower, df);
  return std::expm1(t * std::sqrt(2 * model()->variance() / repeats));
}

std::optional<CellRatios::Ratio> CellRatios::Compare(size_t a, size_t b, bool deviation) {
  if (cells_[a]->size() == 0 || cells_[b]->size() == 0) return std::nullopt;
  if (a == b) {  // the ratio to itself has no noise
    Ratio one;
    for (const auto set : {&v1::Estimate::set_mean, &v1::Estimate::set_median, &v1::Estimate::set_low,
                           &v1::Estimate::set_high})
      (one.estimate.*set)(1);
    one.estimate.set_stddev(0);
    one.common = static_cast<int>(cells_[a]->size());
    return one;
  }
  std::vector<double> ratios = RatiosWithinBlocks(*cells_[a], *cells_[b]);
  const size_t common = ratios.size();
  auto ratio = paired_ ? ByPairs(ratios) : common >= kBlocksToResample ? ByBlocks(a, b) : ByModel(a, b);
  if (!ratio.has_value() && common > 0) ratio = ByBlocks(a, b);
  if (!ratio.has_value()) return std::nullopt;
  ratio->common = static_cast<int>(common);
  if (deviation && common >= 2) ratio->estimate.set_stddev(StandardDeviation(ratios));
  ratio->estimate.set_median(ratios.empty() ? ratio->estimate.mean() : Median(std::move(ratios)));
  return ratio;
}

bool CellRatios::MayCompare(size_t a, size_t b) {
  return HaveCommonBlocks(*cells_[a], *cells_[b]) || (!paired_ && ByModel(a, b).has_value());
}

std::optional<CellRatios::Ratio> CellRatios::ByBlocks(size_t a, size_t b) {
  const bool complete = cells_[a]->block == cells_[b]->block;
  std::vector<Sample> common;
  if (!complete) common = InCommonBlocks({cells_[a], cells_[b]});
  const Sample &first = complete ? *cells_[a] : common[0], &second = complete ? *cells_[b] : common[1];
  std::vector<float> first_means, second_means;
  const bool resamples = bootstrap_.Resamples(first.size());
  if (!complete && resamples)
    first_means = bootstrap_.RelativeMeans(first), second_means = bootstrap_.RelativeMeans(second);
  Ratio ratio;
  const auto interval = complete && resamples ? bootstrap_.Ratio(first, second, MeansOf(a), MeansOf(b))
                                              : bootstrap_.Ratio(first, second, first_means, second_means);
  if (!interval.has_value()) {
    ratio.estimate.set_mean(Mean(first.value) / Mean(second.value));
    return ratio;
  }
  ratio.estimate.set_mean(interval->ratio);
  ratio.estimate.set_low(interval->low);
  ratio.estimate.set_high(interval->high);
  ratio.df = static_cast<double>(first.size()) - 1;
  ratio.error = std::log(interval->high / interval->low) / (2 * bootstrap_.critical().T(ratio.df));
  return ratio;
}

std::optional<CellRatios::Ratio> CellRatios::ByPairs(std::vector<double> logs) const {
  if (logs.empty()) return std::nullopt;
  for (double& ratio : logs) ratio = std::log(ratio);
  Ratio ratio;
  ratio.estimate.set_mean(std::exp(Mean(logs)));
  if (logs.size() < 2) return ratio;
  ratio.df = static_cast<double>(logs.size()) - 1;
  ratio.error = StandardDeviation(logs) / std::sqrt(static_cast<double>(logs.size()));
  const double half = bootstrap_.critical().T(ratio.df) * ratio.error;
  ratio.estimate.set_low(ratio.estimate.mean() * std::exp(-half));
  ratio.estimate.set_high(ratio.estimate.mean() * std::exp(half));
  return ratio;
}

std::optional<CellRatios::Ratio> CellRatios::ByModel(size_t a, size_t b) {
  if (model() == nullptr) return std::nullopt;
  const auto difference = model()->Compare(a, b);
  if (!difference.has_value()) return std::nullopt;
  Ratio ratio;
  ratio.estimate.set_mean(difference->ratio);
  ratio.error = difference->error;
  ratio.df = difference->df;
  if (difference->df <= 0) return ratio;
  const double half = bootstrap_.critical().T(difference->df) * difference->error;
  ratio.estimate.set_low(difference->ratio * std::exp(-half));
  ratio.estimate.set_high(difference->ratio * std::exp(half));
  return ratio;
}

}  // namespace scalelab::analysis
