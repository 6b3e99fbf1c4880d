#include "analysis/factors/step_parts.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "analysis/factors/log_estimate.h"
#include "analysis/statistics.h"

namespace scalelab::analysis {
namespace {

using scalelab::v1::Estimate;
using scalelab::v1::ScalingFactors;

double LoadBalance(const StepParts& parts) { return parts.mean_work / parts.max_work; }
double Data(const StepParts& parts) { return parts.max_work / parts.max_busy; }
double Communication(const StepParts& parts) { return parts.max_busy / parts.step; }

// Returns the seconds of computation of all ranks per sample.
double WorkPerSample(const StepCell& cell, const StepParts& parts) {
  return parts.mean_work * cell.ranks / cell.samples;
}

std::vector<double> Each(const StepCell& cell, double (*of)(const StepParts&)) {
  std::vector<double> values;
  values.reserve(cell.repeats.size());
  for (const StepParts& parts : cell.repeats) values.push_back(of(parts));
  return values;
}

double MeanOf(const StepCell& cell, double StepParts::*part) {
  double sum = 0;
  for (const StepParts& parts : cell.repeats) sum += parts.*part;
  return sum / static_cast<double>(cell.repeats.size());
}

double GeometricMeanOfWork(const StepCell& cell) {
  std::vector<double> logs;
  for (const StepParts& parts : cell.repeats) logs.push_back(std::log(WorkPerSample(cell, parts)));
  return std::exp(Mean(logs));
}

// A repeat of the point and the same repeat of the base case.
struct Pair {
  const StepParts *point, *base;
};

// The repeats of both cells are in ascending order.
std::vector<Pair> CommonRepeats(const StepCell& point, const StepCell& base) {
  std::vector<Pair> pairs;
  pairs.reserve(point.repeats.size());
  auto other = base.repeats.begin();
  for (const StepParts& parts : point.repeats) {
    while (other != base.repeats.end() && other->repeat < parts.repeat) ++other;
    if (other != base.repeats.end() && other->repeat == parts.repeat) pairs.push_back({&parts, &*other});
  }
  return pairs;
}

// `computed` is the geometric mean of the shares of the step that the ranks of `point` compute.
void AddComputation(const StepCell& point, const StepCell& base, double computed,
                    const CriticalValues& critical, ScalingFactors& factors) {
  const std::vector<Pair> pairs = CommonRepeats(point, base);
  std::vector<double> ratios, products;
  ratios.reserve(pairs.size());
  products.reserve(pairs.size());
  for (const auto& [mine, theirs] : pairs) {
    const double ratio = WorkPerSample(base, *theirs) / WorkPerSample(point, *mine);
    ratios.push_back(ratio);
    products.push_back(ratio * mine->mean_work / mine->step);
  }
  Estimate& computation = *factors.mutable_computation();
  if (!pairs.empty()) {
    computation = EstimateGeometricMean(std::move(ratios), critical, kNoLimit);
  } else {
    computation.set_mean(GeometricMeanOfWork(base) / GeometricMeanOfWork(point));
    computation.set_median(computation.mean());
  }
  Estimate product =
      pairs.empty() ? Estimate() : EstimateGeometricMean(std::move(products), critical, kNoLimit);
  // If repeats are missing, the mean of the products differs a little from the product of the means. Use the
  // latter, so that the shown factors multiply to the shown product.
  const double mean = computed * computation.mean();
  if (product.has_low()) product.set_low(product.low() * mean / product.mean());
  if (product.has_high()) product.set_high(product.high() * mean / product.mean());
  product.set_mean(mean);
  if (pairs.empty()) product.set_median(mean);
  *factors.mutable_product() = std::move(product);
}

void AddShares(const StepCell& point, const StepCell* base, ScalingFactors& factors) {
  const double step = MeanOf(point, &StepParts::step), work = MeanOf(point, &StepParts::mean_work);
  const double slowest = MeanOf(point, &StepParts::max_work), busy = MeanOf(point, &StepParts::max_busy);
  double ideal = work;
  if (base != nullptr)
    ideal = std::min(work, MeanOf(*base, &StepParts::mean_work) * base->ranks / base->samples *
                               point.samples / point.ranks);
  factors.set_step_seconds(step);
  factors.set_ideal_share(ideal / step);
  factors.set_slower_share((work - ideal) / step);
  factors.set_imbalance_share((slowest - work) / step);
  factors.set_data_share((busy - slowest) / step);
  factors.set_communication_share((step - busy) / step);
}

// Sets the seconds of communication that the engine measured, and the share of them that is hidden.
void AddCommunication(const StepCell& point, const CriticalValues& critical, ScalingFactors& factors) {
  std::vector<double> totals, hidden;
  for (const StepParts& parts : point.repeats) {
    if (!parts.comm_total.has_value() || *parts.comm_total <= 0) continue;
    totals.push_back(*parts.comm_total);
    hidden.push_back(std::clamp(1 - parts.exposed / *parts.comm_total, 0.0, 1.0));
  }
  if (totals.empty()) return;
  *factors.mutable_communication_seconds() = EstimateMean(totals, critical, 0, kNoLimit);
  *factors.mutable_hidden() = EstimateMean(hidden, critical, 0, 1);
}

}  // namespace

double WorkOf(const db::RunTimes::Rank& rank) { return rank.step - rank.exposed - rank.data; }

std::optional<StepParts> PartsOf(const db::RunTimes& times, int repeat) {
  if (times.ranks.empty()) return std::nullopt;
  const auto ranks = static_cast<double>(times.ranks.size());
  StepParts parts;
  parts.repeat = repeat;
  parts.times = &times;
  parts.comm_total = times.comm_total;
  for (const db::RunTimes::Rank& rank : times.ranks) {
    const double work = WorkOf(rank);
    if (!(work > 0)) return std::nullopt;
    parts.step = std::max(parts.step, rank.step);
    parts.mean_work += work / ranks;
    parts.max_work = std::max(parts.max_work, work);
    parts.max_busy = std::max(parts.max_busy, work + rank.data);
    parts.exposed += rank.exposed / ranks;
  }
  return parts;
}

ScalingFactors MakeFactors(const StepCell& point, const StepCell* base, const CriticalValues& critical) {
  ScalingFactors factors;
  factors.set_n(static_cast<int>(point.repeats.size()));
  *factors.mutable_load_balance() = EstimateGeometricMean(Each(point, LoadBalance), critical, 1);
  *factors.mutable_data() = EstimateGeometricMean(Each(point, Data), critical, 1);
  *factors.mutable_communication() = EstimateGeometricMean(Each(point, Communication), critical, 1);
  std::vector<double> computed =
      Each(point, [](const StepParts& parts) { return parts.mean_work / parts.step; });
  if (base != nullptr) {
    AddComputation(point, *base, GeometricMean(computed), critical, factors);
  } else {
    *factors.mutable_product() = EstimateGeometricMean(std::move(computed), critical, 1);
  }
  AddShares(point, base, factors);
  AddCommunication(point, critical, factors);
  return factors;
}

}  // namespace scalelab::analysis
