#include "server/prediction/models.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "analysis/fits.h"

namespace scalelab::server {
namespace {

constexpr double kPerDoubling = 0.04, kPerDoublingReplayed = 0.01;

double CostOf(const MeasuredSize& size) { return size.ranks / size.throughput; }

// Returns the throughput that a law D(p) of fits.h predicts.
template <class D>
double OfLaw(const MeasuredSize& base, int ranks, const D& d) {
  return base.throughput * ranks / base.ranks * d(base.ranks) / d(ranks);
}

double LogLog(const MeasuredSize& before, const MeasuredSize& last, int ranks) {
  const double exponent = std::log(last.throughput / before.throughput) /
                          std::log(static_cast<double>(last.ranks) / before.ranks);
  return last.throughput * std::pow(static_cast<double>(ranks) / last.ranks, exponent);
}

double InverseEfficiency(const MeasuredSize& before, const MeasuredSize& last, int ranks) {
  const double per_doubling =
      (CostOf(last) - CostOf(before)) / std::log2(static_cast<double>(last.ranks) / before.ranks);
  return ranks / (CostOf(last) + per_doubling * std::log2(static_cast<double>(ranks) / last.ranks));
}

// A term of Extra-P's normal form.
struct Term {
  double power = 0;
  int log_power = 0;
  double At(double p) const { return std::pow(p, power) * std::pow(std::log2(p), log_power); }
};

// c(p) = constant + factor * term(p)
struct CostModel {
  Term term;
  double constant = 0, factor = 0;
  double At(double p) const { return constant + factor * term.At(p); }
};

// Fits the model by least squares of relative deviations. Leaves out the size at index `without`; -1
// leaves out none. The factor is at least 0, because the cost of a sample does not decrease with ranks in
// the long run.
CostModel Fit(const std::vector<MeasuredSize>& measured, Term term, int without) {
  double weights = 0, mean_term = 0, mean_cost = 0;
  const auto each = [&](auto visit) {
    for (int i = 0; i < static_cast<int>(measured.size()); ++i) {
      const double cost = CostOf(measured[i]);
      if (i != without) visit(1 / (cost * cost), term.At(measured[i].ranks), cost);
    }
  };
  each([&](double weight, double t, double cost) {
    weights += weight, mean_term += weight * t, mean_cost += weight * cost;
  });
  mean_term /= weights, mean_cost /= weights;
  double of_term = 0, product = 0;
  each([&](double weight, double t, double cost) {
    of_term += weight * (t - mean_term) * (t - mean_term);
    product += weight * (t - mean_term) * (cost - mean_cost);
  });
  CostModel model;
  model.term = term;
  model.factor = of_term > 0 ? std::max(0.0, product / of_term) : 0;
  model.constant = mean_cost - model.factor * mean_term;
  return model;
}

// Returns the error of leave-one-out cross-validation: predicts each measured size from the others, and adds
// up the relative errors.
double ErrorWithoutEach(const std::vector<MeasuredSize>& measured, Term term) {
  double error = 0;
  for (int i = 0; i < static_cast<int>(measured.size()); ++i) {
    const double cost = CostOf(measured[i]), predicted = Fit(measured, term, i).At(measured[i].ranks);
    error += 2 * std::abs(predicted - cost) / (std::abs(predicted) + cost);
  }
  return error;
}

double ExtraP(const std::vector<MeasuredSize>& measured, int ranks) {
  constexpr double kThird = 1.0 / 3;
  static constexpr std::array kPowers = {0.0,  0.25,       kThird, 0.5,        2 * kThird, 0.75, 1.0,
                                         1.25, 4 * kThird, 1.5,    5 * kThird, 1.75,       2.0};
  Term best;
  double least = HUGE_VAL;
  for (const double power : kPowers) {
    for (const int log_power : {0, 1, 2}) {
      if (power == 0 && log_power == 0) continue;
      const double error = ErrorWithoutEach(measured, {power, log_power});
      if (error >= least - 1e-12) continue;
      least = error;
      best = {power, log_power};
    }
  }
  return ranks / Fit(measured, best, -1).At(ranks);
}

}  // namespace

std::map<std::string, double> PredictByModels(const std::vector<MeasuredSize>& measured, int ranks) {
  const MeasuredSize &base = measured.front(), &last = measured.back(),
                     &before = measured[measured.size() - 2];
  std::vector<double> sizes, speedups;
  for (const MeasuredSize& size : measured) {
    sizes.push_back(size.ranks);
    speedups.push_back(size.throughput / base.throughput);
  }
  const double serial = analysis::FitAmdahl(sizes, speedups, base.ranks).serial_fraction;
  const analysis::UslFit usl = analysis::FitUsl(sizes, speedups, base.ranks);
  std::map<std::string, double> models = {
      {"amdahl", OfLaw(base, ranks, [&](double p) { return 1 + serial * (p - 1); })},
      {"usl", OfLaw(base, ranks,
                    [&](double p) { return 1 + usl.contention * (p - 1) + usl.coherency * p * (p - 1); })},
      {"log-log", LogLog(before, last, ranks)},
      {"1/efficiency", InverseEfficiency(before, last, ranks)},
      {"extra-p", ExtraP(measured, ranks)}};
  std::erase_if(models,
                [](const auto& model) { return !(model.second > 0) || !std::isfinite(model.second); });
  return models;
}

PredictedThroughput PredictThroughput(const std::vector<MeasuredSize>& measured, int ranks, double noise,
                                      std::optional<double> replayed) {
  PredictedThroughput predicted;
  predicted.models = PredictByModels(measured, ranks);
  if (replayed.has_value()) predicted.models["replay"] = *replayed;
  double logs = 0, least = HUGE_VAL, most = 0;
  int used = 0;
  for (const auto& [name, throughput] : predicted.models) {
    if (name == "amdahl" || name == "usl") continue;
    ++used;
    logs += std::log(throughput);
    least = std::min(least, throughput);
    most = std::max(most, throughput);
  }
  const double doublings = std::log2(static_cast<double>(ranks) / measured.back().ranks);
  const double margin = std::hypot((replayed ? kPerDoublingReplayed : kPerDoubling) * doublings, noise);
  predicted.mean = std::exp(logs / used);
  predicted.low = least * std::max(0.0, 1 - margin);
  predicted.high = most * (1 + margin);
  return predicted;
}

}  // namespace scalelab::server
