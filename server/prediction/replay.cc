#include "server/prediction/replay.h"

#include <algorithm>
#include <cmath>

#include "analysis/distributions.h"

namespace scalelab::server {
namespace {

// Lower limit for the share of the computation that can hide communication. Backward is two thirds of the
// computation, and the first bucket is ready after a part of it. Measurements show a share only if
// communication was exposed.
constexpr double kHideable = 0.5;

}  // namespace

FitFactors FitNotNegative(const std::vector<FitTerm>& terms) {
  double ff = 0, fg = 0, gg = 0, fy = 0, gy = 0;
  for (const FitTerm& term : terms) {
    const double f = term.first / term.y, g = term.second / term.y;
    ff += f * f, fg += f * g, gg += g * g, fy += f, gy += g;
  }
  const double determinant = ff * gg - fg * fg;
  FitFactors both;
  if (determinant > 1e-12 * ff * gg) {
    both.first = (fy * gg - gy * fg) / determinant;
    both.second = (gy * ff - fy * fg) / determinant;
    if (both.first >= 0 && both.second >= 0) return both;
  }
  // One of the factors is 0: choose the term that alone has the smaller error.
  const double only_first = ff > 0 ? fy / ff : 0, only_second = gg > 0 ? gy / gg : 0;
  const bool first_is_better = fy * only_first > gy * only_second;
  return first_is_better ? FitFactors{only_first, 0} : FitFactors{0, only_second};
}

double LargestOf(int count) { return analysis::NormalQuantile((count - 0.375) / (count + 0.25)); }

std::optional<double> ComputeSeconds(const std::vector<PartsOfSize>& measured, double batch,
                                     int ranks_per_node) {
  const auto full = [&](const PartsOfSize& size) {
    return ranks_per_node == 0 || size.ranks >= ranks_per_node;
  };
  // Ranks that share a node slow each other down, so fit only sizes that fill their nodes if there are
  // two or more.
  const bool only_full = std::ranges::count_if(measured, full) >= 2;
  std::vector<FitTerm> compute;
  bool batches_differ = false;
  for (const PartsOfSize& size : measured) {
    const MeanStepParts& parts = size.parts;
    if (!(parts.compute > 0)) return std::nullopt;
    if (!only_full || full(size)) compute.push_back({1, parts.batch, parts.compute});
    batches_differ = batches_differ || parts.batch != measured.front().parts.batch;
  }
  // With equal batches (weak scaling) the computation is that of the largest size.
  const MeanStepParts& last = measured.back().parts;
  if (!batches_differ) return last.compute;
  const FitFactors factors = FitNotNegative(compute);
  const auto at = [&](double samples) { return factors.first + factors.second * samples; };
  return last.compute * at(batch) / at(last.batch);
}

std::optional<double> ReplayStep(const std::vector<PartsOfSize>& measured, int ranks, double batch,
                                 int ranks_per_node) {
  const std::optional<double> compute = ComputeSeconds(measured, batch, ranks_per_node);
  if (!compute.has_value()) return std::nullopt;
  const auto between_nodes = [&](int size) { return ranks_per_node != 0 && size > ranks_per_node; };
  std::vector<FitTerm> ring;
  double waiting = HUGE_VAL;
  for (const PartsOfSize& size : measured) {
    const MeanStepParts& parts = size.parts;
    if (size.ranks == 1) continue;
    waiting = std::min(waiting, parts.communication / parts.compute / LargestOf(size.ranks));
    const double p = size.ranks;
    if (parts.exposed > 0 && between_nodes(size.ranks) == between_nodes(ranks))
      ring.push_back({p - 1, (p - 1) / p, parts.exposed});
  }
  const PartsOfSize& last = measured.back();
  if (ring.empty() || !(last.parts.exposed > 0)) return std::nullopt;
  const double w = *compute;
  // Latency and bandwidth cannot be fitted to one size. Assume that bandwidth causes the whole time.
  const FitFactors link = ring.size() > 1 ? FitNotNegative(ring) : FitFactors{0, ring[0].y / ring[0].second};
  const auto at = [&](double p) { return link.first * (p - 1) + link.second * (p - 1) / p; };
  const double growth = at(ranks) / at(last.ranks);
  const double in_step = last.parts.communication - waiting * LargestOf(last.ranks) * last.parts.compute;
  const double moving = std::max(in_step, last.parts.exposed);
  const double hidden = std::max((moving - last.parts.exposed) / last.parts.compute, kHideable);
  return w + std::max(last.parts.exposed * growth, moving * growth - hidden * w);
}

}  // namespace scalelab::server
