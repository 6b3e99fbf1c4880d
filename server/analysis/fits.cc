#include "server/analysis/fits.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "server/analysis/statistics.h"

namespace scalelab::server {
namespace {

using Parameters = std::array<double, 2>;  // Amdahl's law uses only the first

struct Prediction {
  double value;  // speedup by the law
  Parameters derivative;
};

// Amdahl's law with serial fraction s: S(p) = D(p0) / D(p), D(p) = s + (1 - s) / p.
struct Amdahl {
  static constexpr int kParameters = 1;
  static constexpr double kMax = 1;
  static Prediction At(double p, double p0, const Parameters& t) {
    const double slope = 1 - 1 / p, slope0 = 1 - 1 / p0;
    const double d = 1 / p + t[0] * slope, d0 = 1 / p0 + t[0] * slope0;
    return {d0 / d, {(slope0 * d - d0 * slope) / (d * d), 0}};
  }
};

// The Universal Scalability Law with contention a and coherency b:
// S(p) = (p / p0) D(p0) / D(p), D(p) = 1 + a (p - 1) + b p (p - 1).
struct Usl {
  static constexpr int kParameters = 2;
  static constexpr double kMax = 1e9;
  static Prediction At(double p, double p0, const Parameters& t) {
    const double d = 1 + t[0] * (p - 1) + t[1] * p * (p - 1), d0 = 1 + t[0] * (p0 - 1) + t[1] * p0 * (p0 - 1);
    const double scale = p / p0 / (d * d);
    return {p / p0 * d0 / d,
            {scale * ((p0 - 1) * d - d0 * (p - 1)), scale * (p0 * (p0 - 1) * d - d0 * p * (p - 1))}};
  }
};

// The normal equations of the least squares problem, linearised at some parameters.
struct Linear {
  double aa = 0, ab = 0, bb = 0;  // J'J
  double ar = 0, br = 0;          // J'r
};

// Minimises the quadratic model over parameters in [0, max]: returns the unconstrained solution, or else the
// better of the solutions on the edges, which suffices in two dimensions.
template <class Law>
Parameters Step(const Linear& l, const Parameters& from) {
  const auto cut = [](double v) { return std::clamp(v, 0.0, Law::kMax); };
  if (Law::kParameters == 1) return {cut(from[0] + (l.aa > 0 ? l.ar / l.aa : 0)), 0};
  const double determinant = l.aa * l.bb - l.ab * l.ab;
  if (determinant > 1e-14 * l.aa * l.bb) {
    const Parameters free = {from[0] + (l.bb * l.ar - l.ab * l.br) / determinant,
                             from[1] + (l.aa * l.br - l.ab * l.ar) / determinant};
    if (free[0] >= 0 && free[1] >= 0) return free;
  }
  const auto loss = [&](const Parameters& t) {  // of the model, without its constant term
    const double x = t[0] - from[0], y = t[1] - from[1];
    return l.aa * x * x + 2 * l.ab * x * y + l.bb * y * y - 2 * (l.ar * x + l.br * y);
  };
  Parameters on_a = {0, 0}, on_b = {0, 0};
  if (l.aa > 0) on_a[0] = cut(from[0] + (l.ar + l.ab * from[1]) / l.aa);
  if (l.bb > 0) on_b[1] = cut(from[1] + (l.br + l.ab * from[0]) / l.bb);
  return loss(on_a) < loss(on_b) ? on_a : on_b;
}

template <class Law>
double Loss(const std::vector<double>& p, const std::vector<double>& s, double p0, const Parameters& t) {
  double loss = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double r = s[i] - Law::At(p[i], p0, t).value;
    loss += r * r;
  }
  return loss;
}

template <class Law>
Linear Linearise(const std::vector<double>& p, const std::vector<double>& s, double p0, const Parameters& t) {
  Linear l;
  for (size_t i = 0; i < p.size(); ++i) {
    const Prediction at = Law::At(p[i], p0, t);
    const double r = s[i] - at.value;
    l.aa += at.derivative[0] * at.derivative[0];
    l.ab += at.derivative[0] * at.derivative[1];
    l.bb += at.derivative[1] * at.derivative[1];
    l.ar += at.derivative[0] * r;
    l.br += at.derivative[1] * r;
  }
  return l;
}

// Fits with Gauss-Newton and step halving, starting from the best point of a coarse grid.
template <class Law>
Parameters Fit(const std::vector<double>& p, const std::vector<double>& s, double p0) {
  Parameters best = {0, 0};
  double loss = Loss<Law>(p, s, p0, best);
  const auto consider = [&](const Parameters& t) {
    if (const double l = Loss<Law>(p, s, p0, t); l < loss) loss = l, best = t;
  };
  for (double a = 1e-5; a <= 1; a *= std::sqrt(10.0)) {
    consider({a, 0});
    if (Law::kParameters == 1) continue;
    for (double b = 1e-7; b <= 1; b *= 10) consider({a, b}), consider({0, b});
  }
  for (int iteration = 0; iteration < 100; ++iteration) {
    const Parameters target = Step<Law>(Linearise<Law>(p, s, p0, best), best);
    const Parameters from = best;
    double step = 1;
    for (; step > 1e-9; step /= 2) {
      consider({from[0] + step * (target[0] - from[0]), from[1] + step * (target[1] - from[1])});
      if (best != from) break;
    }
    if (best == from || std::abs(best[0] - from[0]) + std::abs(best[1] - from[1]) < 1e-13) break;
  }
  return best;
}

struct Series {
  const std::vector<double>& ranks;
  const std::vector<const Sample*>& points;
  const std::vector<std::vector<float>>& means;
  size_t base;
  const BlockBootstrap& bootstrap;
  size_t smallest;  // sample
};

// Groups of blocks that the jackknife leaves out: one block each, unless there are more
// than kMaxGroups blocks.
constexpr int kMaxGroups = 64;
int GroupOf(int block, int blocks) {
  return blocks <= kMaxGroups ? block : static_cast<int>(int64_t{block} * kMaxGroups / blocks);
}

// Computes speedups without the blocks of group `without`; -1: with all blocks. Returns false when a point
// has no block left.
bool Speedups(const Series& series, int without, std::vector<double>& speedups) {
  const auto mean = [&](const Sample& sample) {
    double sum = 0, n = 0;
    for (size_t i = 0; i < sample.size(); ++i) {
      if (GroupOf(sample.block[i], series.bootstrap.blocks()) != without) sum += sample.value[i], ++n;
    }
    return n > 0 ? sum / n : 0;
  };
  const double base = mean(*series.points[series.base]);
  speedups.clear();
  for (const Sample* point : series.points) speedups.push_back(mean(*point) / base);
  return base > 0 && std::all_of(speedups.begin(), speedups.end(), [](double s) { return s > 0; });
}

template <class Law>
scalelab::v1::ScalingFit Describe(const Series& series, const char* law,
                                  std::initializer_list<const char*> names) {
  std::vector<double> speedups;
  Speedups(series, -1, speedups);
  const double p0 = series.ranks[series.base];
  const Parameters fit = Fit<Law>(series.ranks, speedups, p0);

  std::array<scalelab::v1::Estimate, 2> estimates;
  for (int k = 0; k < Law::kParameters; ++k) {
    estimates[k].set_mean(fit[k]);
    estimates[k].set_median(fit[k]);
  }
  const CriticalValues& critical = series.bootstrap.critical();
  const double confidence = critical.confidence();
  const bool drawn_means =
      std::none_of(series.means.begin(), series.means.end(), [](const auto& m) { return m.empty(); });
  if (drawn_means && series.bootstrap.Resamples(series.smallest)) {
    // Only the speedups differ between draws, so the derivatives are computed once.
    const size_t points = series.points.size();
    std::vector<Prediction> at;
    for (double p : series.ranks) at.push_back(Law::At(p, p0, fit));
    Linear l = Linearise<Law>(series.ranks, speedups, p0, fit);
    std::array<std::vector<float>, 2> drawn;
    const std::vector<float>& base = series.means[series.base];
    for (size_t r = 0; r < base.size(); ++r) {
      l.ar = l.br = 0;
      for (size_t i = 0; i < points; ++i) {
        const double residual = speedups[i] * (series.means[i][r] / base[r]) - at[i].value;
        l.ar += at[i].derivative[0] * residual;
        l.br += at[i].derivative[1] * residual;
      }
      if (std::isnan(l.ar)) continue;
      const Parameters t = Step<Law>(l, fit);
      for (int k = 0; k < Law::kParameters; ++k) drawn[k].push_back(static_cast<float>(t[k]));
    }
    const double factor = series.bootstrap.Widening(series.smallest);
    for (int k = 0; k < Law::kParameters && drawn[k].size() > 1; ++k) {
      estimates[k].set_median(Quantile(drawn[k], 0.5));
      const double low = Quantile(drawn[k], 0.5 - confidence / 2),
                   high = Quantile(drawn[k], 0.5 + confidence / 2);
      estimates[k].set_low(std::clamp(fit[k] + factor * (low - fit[k]), 0.0, fit[k]));
      estimates[k].set_high(std::clamp(fit[k] + factor * (high - fit[k]), fit[k], Law::kMax));
    }
  } else if (series.smallest >= 2) {
    std::set<int> groups;
    for (const Sample* point : series.points) {
      for (int block : point->block) groups.insert(GroupOf(block, series.bootstrap.blocks()));
    }
    std::array<std::vector<double>, 2> left_out;
    std::vector<double> without;
    for (int group : groups) {
      if (!Speedups(series, group, without)) continue;
      const Parameters t = Fit<Law>(series.ranks, without, p0);
      for (int k = 0; k < Law::kParameters; ++k) left_out[k].push_back(t[k]);
    }
    const size_t count = left_out[0].size();
    const double n = static_cast<double>(count);
    const double t = count < 2 ? 0 : critical.T(std::min(series.smallest, count) - 1);
    for (int k = 0; k < Law::kParameters && count >= 2; ++k) {
      const double deviation = StandardDeviation(left_out[k]) * (n - 1) / std::sqrt(n);
      estimates[k].set_low(std::max(0.0, fit[k] - t * deviation));
      estimates[k].set_high(std::min(Law::kMax, fit[k] + t * deviation));
    }
  }
  scalelab::v1::ScalingFit out;
  out.set_law(law);
  int k = 0;
  for (const char* name : names) (*out.mutable_parameters())[name] = estimates[k++];
  return out;
}

}  // namespace

AmdahlFit FitAmdahl(const std::vector<double>& ranks, const std::vector<double>& speedups,
                    double base_ranks) {
  return {Fit<Amdahl>(ranks, speedups, base_ranks)[0]};
}

UslFit FitUsl(const std::vector<double>& ranks, const std::vector<double>& speedups, double base_ranks) {
  const Parameters t = Fit<Usl>(ranks, speedups, base_ranks);
  return {t[0], t[1]};
}

std::vector<scalelab::v1::ScalingFit> FitLaws(const std::vector<double>& ranks,
                                              const std::vector<const Sample*>& points,
                                              const std::vector<std::vector<float>>& means, size_t base,
                                              const BlockBootstrap& bootstrap) {
  std::vector<scalelab::v1::ScalingFit> fits;
  const size_t distinct = std::set<double>(ranks.begin(), ranks.end()).size();
  if (distinct < 3) return fits;
  size_t smallest = points[0]->size();
  for (const Sample* point : points) smallest = std::min(smallest, point->size());
  const Series series{ranks, points, means, base, bootstrap, smallest};
  fits.push_back(Describe<Amdahl>(series, "amdahl", {"serial_fraction"}));
  if (distinct >= 4) fits.push_back(Describe<Usl>(series, "usl", {"contention", "coherency"}));
  return fits;
}

}  // namespace scalelab::server
