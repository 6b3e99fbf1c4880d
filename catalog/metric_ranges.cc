#include "catalog/metric_ranges.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace scalelab {
namespace {

// The upper limits are far above what any machine reaches: a million GPUs with a million samples/s each, 30
// years, an exabyte.
constexpr double kMostSamples = 1e12, kMostSeconds = 1e9, kMostBytes = 1e18, kMostJoules = 1e18,
                 kMostUpdates = 1e15;
constexpr MetricRange kRanges[] = {
    {"run/throughput", 0, kMostSamples, true},
    {"run/throughput_mean", 0, kMostSamples, true},
    {"run/epoch_seconds", 0, kMostSeconds, true},
    {"run/step_seconds", 0, kMostSeconds, true},
    {"run/comm_share", 0, 1},
    {"run/peak_memory_bytes", 0, kMostBytes},
    {"run/device_memory_bytes", 0, kMostBytes},
    {"run/device_reserved_bytes", 0, kMostBytes},
    {"run/accuracy", 0, 1},
    {"run/train_loss", -1e30, 1e30},
    {"run/time_to_accuracy_s", 0, kMostSeconds},
    {"run/straggler_skew", -1e-6, 1e6},
    {"run/cpu_utilisation", 0, 1e6},
    {"run/steps", 0, 1e15},
    {"run/mean_step_s", 0, kMostSeconds, true},
    {"run/comm_exposed_s", 0, kMostSeconds},
    {"run/data_s", 0, kMostSeconds},
    {"run/comm_total_s", 0, kMostSeconds},
    {"run/rank_gradient_norm2", 0, 1e30},
    {"run/mean_gradient_norm2", 0, 1e30},
    {"run/samples_to_accuracy", 0, 1e15, true},
    {"run/energy_joules", 0, kMostJoules, true},
    {"run/joules_per_sample", 0, kMostJoules, true},
    {"run/gpu_utilisation", 0, 1},
    {"run/gpu_power_w", 0, 1e6},
    {"run/gpu_clock_mhz", 0, 1e6},
    {"run/gpu_throttled", 0, 1},
    {"run/gpu_memory_bytes", 0, kMostBytes},
    {"run/staleness_mean", 0, kMostUpdates},
    {"run/staleness_p50", 0, kMostUpdates},
    {"run/staleness_p90", 0, kMostUpdates},
    {"run/staleness_p99", 0, kMostUpdates},
    {"run/staleness_max", 0, kMostUpdates},
    {"memory/parameters_bytes", 0, kMostBytes},
    {"memory/gradients_bytes", 0, kMostBytes},
    {"memory/optimizer_bytes", 0, kMostBytes},
    {"memory/parameters_ideal_bytes", 0, kMostBytes},
    {"memory/gradients_ideal_bytes", 0, kMostBytes},
    {"memory/optimizer_ideal_bytes", 0, kMostBytes},
    {"memory/activations_bytes", 0, kMostBytes},
};

}  // namespace

const MetricRange& RangeOf(absl::string_view metric) {
  return *std::ranges::find(kRanges, metric, &MetricRange::name);
}

std::string WhyImpossible(absl::string_view metric, double value) {
  if (std::isnan(value)) return "is not a number";
  if (std::isinf(value)) return "is infinite";
  for (const MetricRange& range : kRanges) {
    if (range.name != metric || range.Contains(value)) continue;
    if (range.above_min && value <= range.min)
      return absl::StrCat("is ", value, ", which is not above ", range.min);
    if (value < range.min) return absl::StrCat("is ", value, ", which is below ", range.min);
    return absl::StrCat("is ", value, ", which is above ", range.max);
  }
  return "";
}

}  // namespace scalelab
