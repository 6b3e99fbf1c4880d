#include "analysis/fits.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "analysis/statistics.h"

namespace scalelab::analysis {
namespace {

using Parameters = std::array<double, 2>;  // Amdahl's law uses only the first

struct Amdahl {
  static constexpr int kParameters = 1;
  static constexpr double kMax = 1;
};
struct Usl {
  static constexpr int kParameters = 2;
  static constexpr double kMax = 1e9;
};

// D(p) = 1 + a First(p) + b Second(p)
double First(double p) { return p - 1; }
double Second(double p) { return p * (p - 1); }
double D(double p, const Parameters& t) { return 1 + t[0] * First(p) + t[1] * Second(p); }
double Speedup(double p, double p0, const Parameters& t) { return p / p0 * D(p0, t) / D(p, t); }

template <class Law>
Parameters Cut(Parameters t) {
  for (double& v : t) v = std::clamp(v, 0.0, Law::kMax);
  return t;
}

// The normal equations of the weighted least squares problem.
struct Linear {
  double aa = 0, ab = 0, bb = 0;  // J'J
  double ar = 0, br = 0;          // J'r
};

Linear Accumulate(const std::vector<double>& p, const std::vector<double>& s, double p0) {
  Linear l;
  for (size_t i = 0; i < p.size(); ++i) {
    const double y = p[i] / (p0 * s[i]);
    const double a = First(p[i]) / y - First(p0), b = Second(p[i]) / y - Second(p0), r = 1 - 1 / y;
    l.aa += a * a, l.ab += a * b, l.bb += b * b, l.ar += a * r, l.br += b * r;
  }
  return l;
}

// Returns the unconstrained solution.
template <class Law>
Parameters Solve(const Linear& l) {
  const double determinant = l.aa * l.bb - l.ab * l.ab;
  if (Law::kParameters == 1 || determinant <= 1e-14 * l.aa * l.bb) return {l.aa > 0 ? l.ar / l.aa : 0, 0};
  return {(l.bb * l.ar - l.ab * l.br) / determinant, (l.aa * l.br - l.ab * l.ar) / determinant};
}
template <class Law>
Parameters Solve(const std::vector<double>& p, const std::vector<double>& s, double p0) {
  return Solve<Law>(Accumulate(p, s, p0));
}

// Returns the best possible solution: the unconstrained one or, if that is impossible, the best on an edge.
template <class Law>
Parameters SolvePossible(const std::vector<double>& p, const std::vector<double>& s, double p0) {
  const Linear l = Accumulate(p, s, p0);
  const Parameters free = Solve<Law>(l), cut = Cut<Law>(free);
  if (free == cut || Law::kParameters == 1) return cut;
  const Parameters on_a = Cut<Law>({l.aa > 0 ? l.ar / l.aa : 0, 0}),
                   on_b = Cut<Law>({0, l.bb > 0 ? l.br / l.bb : 0});
  const auto loss = [&](const Parameters& t) {  // without its constant term
    return l.aa * t[0] * t[0] + 2 * l.ab * t[0] * t[1] + l.bb * t[1] * t[1] - 2 * (l.ar * t[0] + l.br * t[1]);
  };
  return loss(on_a) < loss(on_b) ? on_a : on_b;
}

// The jackknife leaves out one group of blocks at a time. A group is one block, unless there are more
// than kMaxGroups blocks.
constexpr int kMaxGroups = 64;
int GroupOf(int block, int blocks) {
  return blocks <= kMaxGroups ? block : static_cast<int>(int64_t{block} * kMaxGroups / blocks);
}

// The sums of a cell's values by group. With them, the mean without a group can be computed without a pass
// over the values.
class GroupSums {
 public:
  GroupSums(const Sample& sample, int blocks)
      : groups_(static_cast<size_t>(GroupOf(blocks - 1, blocks)) + 1) {
    for (size_t i = 0; i < sample.size(); ++i) {
      Sum& group = groups_[GroupOf(sample.block[i], blocks)];
      group.sum += sample.value[i], ++group.count;
      all_.sum += sample.value[i], ++all_.count;
    }
  }
  bool Has(int group) const { return groups_[group].count > 0; }
  // Returns the mean of the other groups; NaN if there are none.
  double MeanWithout(int group) const {
    return (all_.sum - groups_[group].sum) / static_cast<double>(all_.count - groups_[group].count);
  }

 private:
  struct Sum {
    double sum = 0;
    int count = 0;
  };
  std::vector<Sum> groups_;
  Sum all_;
};

struct Series {
  const std::vector<double>& ranks;
  const std::vector<size_t>& cells;
  size_t base;
  CellRatios& ratios;
  const BlockBootstrap& bootstrap;
  std::vector<double> speedups;
  size_t smallest;              // sample
  std::vector<GroupSums> sums;  // by cell, if the jackknife uses means

  const Sample& sample(size_t i) const { return ratios.sample(cells[i]); }
};

Sample Without(const Sample& sample, int group, int blocks) {
  Sample rest;
  for (size_t i = 0; i < sample.size(); ++i) {
    if (GroupOf(sample.block[i], blocks) == group) continue;
    rest.block.push_back(sample.block[i]);
    rest.value.push_back(sample.value[i]);
    if (sample.HasTimes()) rest.time.push_back(sample.time[i]);
  }
  return rest;
}

// Returns the speedups without the blocks of a group; nothing when a point cannot be compared with the base any more.
std::optional<std::vector<double>> SpeedupsWithout(const Series& series, int group) {
  std::vector<double> speedups;
  if (!series.sums.empty()) {
    const double base = series.sums[series.base].MeanWithout(group);
    for (const GroupSums& sums : series.sums) speedups.push_back(sums.MeanWithout(group) / base);
    const bool comparable = std::ranges::all_of(speedups, [](double s) { return std::isfinite(s); });
    return comparable ? std::optional(std::move(speedups)) : std::nullopt;
  }
  std::vector<Sample> rest;
  std::vector<const Sample*> pointers;
  rest.reserve(series.cells.size());
  for (size_t i = 0; i < series.cells.size(); ++i) {
    pointers.push_back(&rest.emplace_back(Without(series.sample(i), group, series.bootstrap.blocks())));
    if (rest.back().size() == 0) return std::nullopt;
  }
  const BlockModel model(pointers, series.bootstrap.blocks());
  for (size_t i = 0; i < rest.size(); ++i) {
    const auto difference = model.Compare(i, series.base);
    if (!difference.has_value()) return std::nullopt;
    speedups.push_back(difference->ratio);
  }
  return speedups;
}

using Estimates = std::array<scalelab::v1::Estimate, 2>;

template <class Law>
void AddJackknife(const Series& series, const Parameters& fit, Estimates& estimates) {
  std::set<int> groups;
  for (int group = 0; group < kMaxGroups && !series.sums.empty(); ++group) {
    const bool used =
        std::ranges::any_of(series.sums, [&](const GroupSums& sums) { return sums.Has(group); });
    if (used) groups.insert(group);
  }
  for (size_t i = 0; i < series.cells.size() && series.sums.empty(); ++i) {
    for (const int block : series.sample(i).block) groups.insert(GroupOf(block, series.bootstrap.blocks()));
  }
  std::array<std::vector<double>, 2> left_out;
  for (const int group : groups) {
    const auto speedups = SpeedupsWithout(series, group);
    if (!speedups.has_value()) continue;
    const Parameters t = Solve<Law>(series.ranks, *speedups, series.ranks[series.base]);
    for (int k = 0; k < Law::kParameters; ++k) left_out[k].push_back(t[k]);
  }
  const size_t count = left_out[0].size();
  if (count < 2) return;
  const double n = static_cast<double>(count);
  const double t = series.bootstrap.critical().T(static_cast<double>(std::min(series.smallest, count)) - 1);
  for (int k = 0; k < Law::kParameters; ++k) {
    const double deviation = StandardDeviation(left_out[k]) * (n - 1) / std::sqrt(n);
    estimates[k].set_low(std::clamp(fit[k] - t * deviation, 0.0, Law::kMax));
    estimates[k].set_high(std::clamp(fit[k] + t * deviation, 0.0, Law::kMax));
  }
}

// Draws each parameter with one Gauss-Newton step from the fit (the one-step bootstrap: Shao and Tu, The Jackknife and
// Bootstrap, 1995). The step is linear in the means that are drawn: a point whose ratio to the base changes by x changes
// parameter k by -slope[k] x.
template <class Law>
void AddBootstrap(const Series& series, const Parameters& fit, Estimates& estimates) {
  const double p0 = series.ranks[series.base];
  const Linear l = Accumulate(series.ranks, series.speedups, p0);
  const double determinant = Law::kParameters == 1 ? l.aa : l.aa * l.bb - l.ab * l.ab;
  if (determinant <= 0) return;
  const std::vector<float>& base = series.ratios.MeansOf(series.cells[series.base]);
  std::array<std::vector<float>, 2> drawn;
  std::array<float, 2> sums = {0, 0};
  for (int k = 0; k < Law::kParameters; ++k) drawn[k].assign(base.size(), 0);
  for (size_t i = 0; i < series.cells.size(); ++i) {
    const double p = series.ranks[i], u = p0 * series.speedups[i] / p;
    const double a = First(p) * u - First(p0), b = Second(p) * u - Second(p0);
    const double change = u * D(p, fit) / determinant;
    const Parameters slope = Law::kParameters == 1
                                 ? Parameters{a * change, 0}
                                 : Parameters{(l.bb * a - l.ab * b) * change, (l.aa * b - l.ab * a) * change};
    const std::vector<float>& means = series.ratios.MeansOf(series.cells[i]);
    for (int k = 0; k < Law::kParameters; ++k) {
      const auto factor = static_cast<float>(slope[k]);
      sums[k] += factor;
      for (size_t r = 0; r < base.size(); ++r) drawn[k][r] += factor * means[r];
    }
  }
  const double factor = series.bootstrap.Widening(series.smallest);
  const double confidence = series.bootstrap.critical().confidence();
  for (int k = 0; k < Law::kParameters; ++k) {
    for (size_t r = 0; r < base.size(); ++r)
      drawn[k][r] = static_cast<float>(fit[k]) + sums[k] - drawn[k][r] / base[r];
    std::erase_if(drawn[k], [](float v) { return std::isnan(v); });
    if (drawn[k].size() < 2) continue;
    estimates[k].set_median(std::clamp(Quantile(drawn[k], 0.5), 0.0, Law::kMax));
    const double low = Quantile(drawn[k], 0.5 - confidence / 2),
                 high = Quantile(drawn[k], 0.5 + confidence / 2);
    estimates[k].set_low(std::clamp(fit[k] + factor * (low - fit[k]), 0.0, Law::kMax));
    estimates[k].set_high(std::clamp(fit[k] + factor * (high - fit[k]), 0.0, Law::kMax));
  }
}

// Returns the sum of squares of `residual` that is left after least squares on `columns`, by Gram-Schmidt.
double SquaresBeside(std::vector<std::vector<double>> columns, std::vector<double> residual) {
  const auto dot = [](const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
  };
  const auto subtract = [&](std::vector<double>& from, const std::vector<double>& direction) {
    const double scale = dot(from, direction) / dot(direction, direction);
    for (size_t i = 0; i < from.size(); ++i) from[i] -= scale * direction[i];
  };
  for (size_t k = 0; k < columns.size(); ++k) {
    const double before = dot(columns[k], columns[k]);
    for (size_t j = 0; j < k; ++j) subtract(columns[k], columns[j]);
    if (dot(columns[k], columns[k]) <= 1e-18 * before) {
      columns.erase(columns.begin() + static_cast<std::ptrdiff_t>(k--));
      continue;
    }
    subtract(residual, columns[k]);
  }
  return dot(residual, residual);
}

// Compares the deviations of log throughput from the law with the noise of the points. The level of the law
// and each of its parameters take a degree of freedom, except a parameter that was cut to its range.
template <class Law>
std::optional<scalelab::v1::LackOfFit> TestFit(const Series& series, const Parameters& fit) {
  const BlockModel* const model = series.ratios.model();
  if (model == nullptr || model->df() <= 0) return std::nullopt;
  const double p0 = series.ranks[series.base];
  std::vector<double> residual, level;
  std::vector<std::vector<double>> columns(1 + Law::kParameters);
  for (size_t i = 0; i < series.cells.size(); ++i) {
    const auto difference = model->Compare(series.cells[i], series.cells[series.base]);
    const double variance = model->VarianceOf(series.cells[i]) / static_cast<double>(series.sample(i).size());
    if (!difference.has_value() || variance <= 0) return std::nullopt;
    const double p = series.ranks[i], weight = 1 / std::sqrt(variance), d = D(p, fit), d0 = D(p0, fit);
    residual.push_back(weight * (difference->log_ratio - std::log(Speedup(p, p0, fit))));
    columns[0].push_back(weight);
    columns[1].push_back(weight * (First(p0) / d0 - First(p) / d));
    if (Law::kParameters == 2) columns[2].push_back(weight * (Second(p0) / d0 - Second(p) / d));
  }
  for (int k = Law::kParameters - 1; k >= 0; --k) {
    if (fit[k] <= 0 || fit[k] >= Law::kMax) columns.erase(columns.begin() + 1 + k);
  }
  const double df = static_cast<double>(residual.size()) - static_cast<double>(columns.size());
  if (df < 1) return std::nullopt;
  scalelab::v1::LackOfFit test;
  test.set_f(SquaresBeside(std::move(columns), std::move(residual)) / df);
  test.set_deviation_df(df);
  test.set_noise_df(model->comparison_df());
  test.set_p(FisherTail(test.f(), df, model->comparison_df()));
  test.set_rejected(test.p() < 1 - kConfidence);
  return test;
}

template <class Law>
scalelab::v1::ScalingFit Describe(const Series& series, const char* law,
                                  std::initializer_list<const char*> names) {
  const Parameters fit = Solve<Law>(series.ranks, series.speedups, series.ranks[series.base]);
  const Parameters shown = SolvePossible<Law>(series.ranks, series.speedups, series.ranks[series.base]);
  Estimates estimates;
  for (int k = 0; k < Law::kParameters; ++k) {
    estimates[k].set_mean(shown[k]);
    estimates[k].set_median(shown[k]);
  }
  bool complete = true;
  for (size_t i = 0; i < series.cells.size(); ++i)
    complete = complete && series.sample(i).block == series.sample(series.base).block;
  if (complete && series.bootstrap.Resamples(series.smallest)) {
    AddBootstrap<Law>(series, fit, estimates);
  } else if (series.smallest >= 2) {
    AddJackknife<Law>(series, fit, estimates);
  }
  for (int k = 0; k < Law::kParameters && estimates[k].has_low(); ++k) {
    estimates[k].set_low(std::min(estimates[k].low(), shown[k]));
    estimates[k].set_high(std::max(estimates[k].high(), shown[k]));
  }
  scalelab::v1::ScalingFit out;
  out.set_law(law);
  int k = 0;
  for (const char* name : names) (*out.mutable_parameters())[name] = estimates[k++];
  if (auto test = TestFit<Law>(series, shown)) *out.mutable_lack_of_fit() = *std::move(test);
  return out;
}

}  // namespace

AmdahlFit FitAmdahl(const std::vector<double>& ranks, const std::vector<double>& speedups,
                    double base_ranks) {
  return {SolvePossible<Amdahl>(ranks, speedups, base_ranks)[0]};
}

UslFit FitUsl(const std::vector<double>& ranks, const std::vector<double>& speedups, double base_ranks) {
  const Parameters t = SolvePossible<Usl>(ranks, speedups, base_ranks);
  return {t[0], t[1]};
}

std::vector<scalelab::v1::ScalingFit> FitLaws(const std::vector<double>& ranks,
                                              const std::vector<size_t>& cells, size_t base,
                                              CellRatios& ratios) {
  std::vector<scalelab::v1::ScalingFit> fits;
  const size_t distinct = std::set<double>(ranks.begin(), ranks.end()).size();
  if (distinct < 3) return fits;
  Series series{ranks, cells, base, ratios, ratios.bootstrap(), {}, ratios.sample(cells[0]).size(), {}};
  for (size_t i = 0; i < cells.size(); ++i) {
    const auto ratio = ratios.Compare(cells[i], cells[base], /*deviation=*/false);
    if (!ratio.has_value()) return fits;
    series.speedups.push_back(ratio->estimate.mean());
    series.smallest = std::min(series.smallest, series.sample(i).size());
  }
  // If no blocks are missing, use the ratio of the means, which needs no model and is cheaper.
  const int blocks = series.bootstrap.blocks();
  const bool complete = series.smallest == static_cast<size_t>(blocks);
  if ((static_cast<size_t>(blocks) > BlockBootstrap::kMostResampled && complete) ||
      blocks > BlockModel::kMaxBlocks) {
    for (const size_t cell : cells) series.sums.emplace_back(ratios.sample(cell), blocks);
  }
  fits.push_back(Describe<Amdahl>(series, "amdahl", {"serial_fraction"}));
  if (distinct >= 4) fits.push_back(Describe<Usl>(series, "usl", {"contention", "coherency"}));
  return fits;
}

}  // namespace scalelab::analysis
