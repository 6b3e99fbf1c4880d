#include "analysis/factors/gradient_noise.h"

#include <algorithm>

#include "analysis/factors/log_estimate.h"
#include "analysis/statistics.h"

namespace scalelab::analysis {
namespace {

using scalelab::v1::Estimate;

// Computes the progress per sample. It increases with the noise scale, so the ends of its interval are the
// values at the ends of the noise scale's interval.
double Efficiency(double noise_scale, double batch) { return noise_scale / (noise_scale + batch); }

Estimate EfficiencyOf(const Estimate& noise_scale, double batch) {
  Estimate efficiency;
  efficiency.set_mean(Efficiency(noise_scale.mean(), batch));
  efficiency.set_median(Efficiency(noise_scale.median(), batch));
  if (noise_scale.has_low()) efficiency.set_low(Efficiency(noise_scale.low(), batch));
  if (noise_scale.has_high()) efficiency.set_high(Efficiency(noise_scale.high(), batch));
  return efficiency;
}

Estimate Product(const Estimate& a, const Estimate& b) {
  Estimate product;
  product.set_mean(a.mean() * b.mean());
  product.set_median(a.median() * b.median());
  if (a.has_low() && b.has_low()) product.set_low(a.low() * b.low());
  if (a.has_high() && b.has_high()) product.set_high(a.high() * b.high());
  return product;
}

}  // namespace

scalelab::v1::GradientNoise MakeGradientNoise(int ranks, double global_batch,
                                              const std::vector<GradientNorms>& norms,
                                              const Estimate* throughput, const CriticalValues& critical) {
  scalelab::v1::GradientNoise noise;
  noise.set_n(static_cast<int>(norms.size()));
  if (ranks < 2) {
    noise.set_missing("one rank has no second batch size to compare with");
    return noise;
  }
  const double batch = global_batch / ranks;
  std::vector<double> traces, squares, ratios;
  for (std::vector<double>* values : {&traces, &squares, &ratios}) values->reserve(norms.size());
  for (const GradientNorms& repeat : norms) {
    squares.push_back((global_batch * repeat.of_mean - batch * repeat.of_rank) / (global_batch - batch));
    traces.push_back((repeat.of_rank - repeat.of_mean) / (1 / batch - 1 / global_batch));
    if (squares.back() > 0) ratios.push_back(traces.back() / squares.back());
  }
  const double trace = Mean(traces), square = Mean(squares);
  const auto interval = FiellerInterval(traces, squares, critical);
  if (trace <= 0 || square <= 0 || (norms.size() > 1 && !interval.has_value())) {
    noise.set_missing(
        "the gradients are too noisy to find their mean; measure more steps or repeats, or use a larger "
        "batch");
    return noise;
  }
  Estimate& scale = *noise.mutable_critical_batch();
  scale.set_mean(trace / square);
  scale.set_median(Median(ratios));
  if (interval.has_value()) {
    scale.set_low(std::max(interval->low, 0.0));
    scale.set_high(interval->high);
  }
  *noise.mutable_statistical_efficiency() = EfficiencyOf(scale, global_batch);
  if (throughput != nullptr) *noise.mutable_goodput() = Product(*throughput, noise.statistical_efficiency());
  return noise;
}

}  // namespace scalelab::analysis
