#include "analysis/block_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "analysis/statistics.h"

namespace scalelab::analysis {
namespace {

// A smaller relative pivot means that the values do not determine the unknown.
constexpr double kSingular = 1e-9;
// The drift is estimated only if cells and blocks leave at least this share of the variation of the times
// unexplained. If the cells have the same order in each block, the share is near 0, and the drift would be a
// small difference of large numbers.
constexpr double kLeastTime = 0.1;
constexpr int kBlocksForDrift = 3;
// Degrees of freedom without a drift, which takes one of them. With two cells and three blocks, one would be left,
// and t(1) = 12.71 makes the interval 2.5 times as wide if the machine does not drift.
constexpr double kDfForDrift = 3;

}  // namespace

BlockModel::BlockModel(const std::vector<const Sample*>& cells, int blocks) : blocks_(blocks) {
  Read(cells);
  Connect();
  Fit(false);
  if (MayDrift() && df_ >= kDfForDrift) Fit(true);
}

void BlockModel::Read(const std::vector<const Sample*>& cells) {
  double first = HUGE_VAL, last = -HUGE_VAL;
  bool timed = true;
  for (const Sample* sample : cells) {
    Cell& cell = cells_.emplace_back();
    cell.sample = sample;
    timed = timed && sample->HasTimes();
    if (sample->size() == 0) continue;
    cell.reference = sample->value[0];
    cell.y.reserve(sample->size());
    for (const double value : sample->value) cell.y.push_back(std::log(value / cell.reference));
    cell.mean_y = Mean(cell.y);
    for (const double time : sample->time) first = std::min(first, time), last = std::max(last, time);
  }
  if (!timed || !(last > first)) return;
  for (Cell& cell : cells_) {  // times from 0 to 1
    cell.time.reserve(cell.sample->size());
    for (const double time : cell.sample->time) cell.time.push_back((time - first) / (last - first));
    cell.mean_time = Mean(cell.time);
  }
}

// Numbers the components of the graph whose edges are the values: each connects a cell with a block.
void BlockModel::Connect() {
  std::vector<int> parent(blocks_);
  std::iota(parent.begin(), parent.end(), 0);
  const auto root = [&](int block) {
    while (parent[block] != block) block = parent[block] = parent[parent[block]];
    return block;
  };
  for (const Cell& cell : cells_) {
    for (const int block : cell.sample->block) parent[root(block)] = root(cell.sample->block[0]);
  }
  for (Cell& cell : cells_) {
    if (cell.sample->size() > 0) cell.component = root(cell.sample->block[0]);
  }
}

bool BlockModel::MayDrift() const {
  return blocks_ >= kBlocksForDrift && std::all_of(cells_.begin(), cells_.end(), [](const Cell& cell) {
           return cell.time.size() == cell.sample->size();
         });
}

// Fits without a drift, or afterwards with one. If the values do not determine the drift, the fit without it stays.
void BlockModel::Fit(bool drift) {
  std::vector<double> matrix_before = std::move(matrix_), right_before = std::move(right_);
  drift_ = drift;
  unknowns_ = blocks_ + (drift ? 1 : 0);
  Accumulate();
  Factor();
  if (drift && At(blocks_, blocks_) == 0) {
    drift_ = false;
    unknowns_ = blocks_;
    matrix_ = std::move(matrix_before);
    right_ = std::move(right_before);
    return;
  }
  Solve();
  EstimateNoise();
}

// Makes the normal equations without the cells. To eliminate a cell, subtracts its mean from its values and
// from the coefficients of the unknowns.
void BlockModel::Accumulate() {
  matrix_.assign(static_cast<size_t>(unknowns_) * unknowns_, 0);
  right_.assign(unknowns_, 0);
  double complete = 0;  // number of cells with a value in each block, which all have the same matrix
  for (const Cell& cell : cells_) {
    const std::vector<int>& block = cell.sample->block;
    const size_t n = block.size();
    if (n == 0) continue;
    if (static_cast<int>(n) == blocks_) {
      ++complete;
    } else {
      for (size_t i = 0; i < n; ++i) {
        At(block[i], block[i]) += 1;
        for (size_t j = 0; j <= i; ++j) At(block[i], block[j]) -= 1 / static_cast<double>(n);
      }
    }
    for (size_t i = 0; i < n; ++i) right_[block[i]] += cell.y[i] - cell.mean_y;
    if (!drift_) continue;
    for (size_t i = 0; i < n; ++i) {
      const double time = cell.time[i] - cell.mean_time;
      At(blocks_, block[i]) += time;
      At(blocks_, blocks_) += time * time;
      right_[blocks_] += time * (cell.y[i] - cell.mean_y);
    }
  }
  for (int i = 0; i < blocks_ && complete > 0; ++i) {
    At(i, i) += complete;
    for (int j = 0; j <= i; ++j) At(i, j) -= complete / blocks_;
  }
}

void BlockModel::Factor() {
  std::vector<double> scaled(unknowns_);
  for (int i = 0; i < unknowns_; ++i) {
    const double least = i < blocks_ ? kSingular * At(i, i) : kLeastTime * TimeWithinBlocks();
    double pivot = At(i, i);
    for (int j = 0; j < i; ++j) {
      double sum = At(i, j);
      for (int k = 0; k < j; ++k) sum -= scaled[k] * At(j, k);
      scaled[j] = At(j, j) == 0 ? 0 : sum;  // L times D
      At(i, j) = At(j, j) == 0 ? 0 : sum / At(j, j);
      pivot -= At(i, j) * scaled[j];
    }
    At(i, i) = pivot > least ? pivot : 0;
  }
}

void BlockModel::Solve() {
  effects_ = right_;
  for (int i = 0; i < unknowns_; ++i) {
    for (int j = 0; j < i; ++j) effects_[i] -= At(i, j) * effects_[j];
  }
  for (int i = 0; i < unknowns_; ++i) effects_[i] = At(i, i) == 0 ? 0 : effects_[i] / At(i, i);
  for (int i = unknowns_ - 1; i >= 0; --i) {
    if (At(i, i) == 0) continue;
    for (int j = i + 1; j < unknowns_; ++j) effects_[i] -= At(j, i) * effects_[j];
  }
}

void BlockModel::EstimateNoise() {
  double squares = 0, values = 0, cells = 0, determined = 0;
  repeated_ = 0;
  for (Cell& cell : cells_) {
    const std::vector<int>& block = cell.sample->block;
    if (block.empty()) continue;
    const double mean = MeanEffect(cell);
    cell.residual.resize(block.size());
    for (size_t i = 0; i < block.size(); ++i) {
      const double drift = drift_ ? effects_[blocks_] * cell.time[i] : 0;
      cell.residual[i] = cell.y[i] - cell.mean_y - (effects_[block[i]] + drift - mean);
      squares += cell.residual[i] * cell.residual[i];
    }
    values += static_cast<double>(block.size());
    ++cells;
    if (block.size() > 1) ++repeated_;
  }
  for (int i = 0; i < unknowns_; ++i) determined += At(i, i) == 0 ? 0 : 1;
  df_ = values - cells - determined;
  variance_ = df_ > 0 ? squares / df_ : 0;
  const double without_drift = df_ + (drift_ ? 1 : 0);
  comparison_df_ = repeated_ > 1 ? std::min(df_, without_drift * repeated_ / (2 * (repeated_ - 1))) : df_;
}

// Returns the sum of squares of the times around the means of their blocks.
double BlockModel::TimeWithinBlocks() const {
  std::vector<double> count(blocks_), sum(blocks_), squares(blocks_);
  for (const Cell& cell : cells_) {
    for (size_t i = 0; i < cell.time.size(); ++i) {
      const int block = cell.sample->block[i];
      ++count[block];
      sum[block] += cell.time[i];
      squares[block] += cell.time[i] * cell.time[i];
    }
  }
  double within = 0;
  for (int b = 0; b < blocks_; ++b) {
    if (count[b] > 0) within += squares[b] - sum[b] * sum[b] / count[b];
  }
  return within;
}

// Returns the mean of the effects of blocks and drift on the values of a cell.
double BlockModel::MeanEffect(const Cell& cell) const {
  double sum = 0;
  for (const int block : cell.sample->block) sum += effects_[block];
  return sum / static_cast<double>(cell.sample->size()) + (drift_ ? effects_[blocks_] * cell.mean_time : 0);
}

// Returns the variance of the difference of two cells, as a multiple of the variance of a value.
double BlockModel::Leverage(const Cell& a, const Cell& b) const {
  const double of_a = 1 / static_cast<double>(a.sample->size()),
               of_b = 1 / static_cast<double>(b.sample->size());
  std::vector<double> x(unknowns_);
  for (const int block : a.sample->block) x[block] += of_a;
  for (const int block : b.sample->block) x[block] -= of_b;
  if (drift_) x[blocks_] = a.mean_time - b.mean_time;
  double leverage = of_a + of_b;
  int first = 0;
  while (first < unknowns_ && std::abs(x[first]) < 1e-12) ++first;
  for (int i = first; i < unknowns_; ++i) {
    for (int j = first; j < i; ++j) x[i] -= At(i, j) * x[j];
    if (At(i, i) > 0) leverage += x[i] * x[i] / At(i, i);
  }
  return leverage;
}

double BlockModel::VarianceOf(size_t cell) const {
  const std::vector<double>& residual = cells_[cell].residual;
  if (df_ <= 0 || residual.size() < 2) return variance_;
  double squares = 0;
  for (const double r : residual) squares += r * r;
  // The fitted effects remove a part of a cell's noise from its residuals. `left` is the expected sum of
  // squares of the residuals, in units of the noise variance. It is exact for complete blocks.
  const double left = static_cast<double>(residual.size() - 1) * (repeated_ - 1) / repeated_;
  return left > 0 ? std::max(variance_, squares / left) : variance_;
}

std::optional<BlockModel::Difference> BlockModel::Compare(size_t a, size_t b) const {
  const Cell &first = cells_[a], &second = cells_[b];
  if (first.component < 0 || first.component != second.component) return std::nullopt;
  Difference difference;
  const double relative = (first.mean_y - MeanEffect(first)) - (second.mean_y - MeanEffect(second));
  const double references = first.reference / second.reference;
  difference.ratio = references * std::exp(relative);
  difference.log_ratio = std::log(references) + relative;

  std::vector<double> within;
  const std::vector<int>&of_a = first.sample->block, &of_b = second.sample->block;
  for (size_t i = 0, j = 0; i < of_a.size() && j < of_b.size();) {
    if (of_a[i] == of_b[j]) {
      within.push_back(first.residual[i++] - second.residual[j++]);
    } else {
      ++(of_a[i] < of_b[j] ? i : j);
    }
  }
  difference.common = static_cast<int>(within.size());
  if (df_ <= 0 || a == b) return difference;
  double own = StandardDeviation(within) * StandardDeviation(within);
  // Increase the variance if a drift was fitted. The fit of the drift depends most on the noisiest cell,
  // whose residuals therefore lose up to half a degree of freedom.
  if (drift_ && difference.common > 1) own *= (difference.common - 1) / (difference.common - 1.5);
  difference.df = comparison_df_;
  difference.error = std::sqrt(std::max(2 * variance_, own) * Leverage(first, second) / 2);
  return difference;
}

}  // namespace scalelab::analysis
