#include "server/prediction/bucket_replay.h"

#include <algorithm>
#include <cmath>

namespace scalelab::server {
namespace {

bool BetweenNodes(int ranks, int ranks_per_node) { return ranks_per_node != 0 && ranks > ranks_per_node; }

// Simulates the recorded steps of one world size. Backward takes `factor` times its recorded duration.
// Returns the mean exposed communication time of a step, in seconds.
double MeanExposed(const RecordedSize& size, const RingCost& cost, int ranks, double factor) {
  double sum = 0;
  for (const RecordedStep& step : size.steps)
    sum += SimulateExposed(step, cost, ranks, step.backward * factor);
  return sum / static_cast<double>(size.steps.size());
}

}  // namespace

RingCost FitRing(const std::vector<AllReduceTime>& times) {
  std::vector<FitTerm> terms;
  for (const AllReduceTime& time : times) {
    const double p = time.ranks;
    terms.push_back({2 * (p - 1), 2 * (p - 1) / p * time.bytes, time.seconds});
  }
  const FitFactors fitted = FitNotNegative(terms);
  return {fitted.first, fitted.second};
}

std::optional<RingCost> FitRing(const std::vector<RecordedSize>& measured, int ranks, int ranks_per_node) {
  std::vector<AllReduceTime> times;
  for (const RecordedSize& size : measured) {
    if (size.ranks == 1 || BetweenNodes(size.ranks, ranks_per_node) != BetweenNodes(ranks, ranks_per_node))
      continue;
    for (const RecordedStep& step : size.steps) {
      for (const RecordedBucket& bucket : step.buckets) {
        if (bucket.reduce > 0) times.push_back({size.ranks, bucket.bytes, bucket.reduce});
      }
    }
  }
  return times.empty() ? std::nullopt : std::optional(FitRing(times));
}

double SimulateExposed(const RecordedStep& step, const RingCost& cost, int ranks, double backward) {
  const double scale = backward / step.backward;
  double end = 0;
  for (const RecordedBucket& bucket : step.buckets)
    end = std::max(end, bucket.ready * scale) + cost.Seconds(ranks, bucket.bytes);
  return std::max(0.0, end - backward);
}

std::optional<double> ReplayBuckets(const std::vector<RecordedSize>& measured, int ranks, double batch,
                                    int ranks_per_node, const std::optional<RingCost>& network) {
  if (measured.back().steps.empty()) return std::nullopt;
  const std::optional<RingCost> cost =
      network.has_value() ? network : FitRing(measured, ranks, ranks_per_node);
  if (!cost.has_value()) return std::nullopt;
  std::vector<PartsOfSize> parts;
  for (const RecordedSize& size : measured) parts.push_back({size.ranks, size.parts});
  const std::optional<double> compute = ComputeSeconds(parts, batch, ranks_per_node);
  if (!compute.has_value()) return std::nullopt;
  const RecordedSize& last = measured.back();
  const double slower = *compute / last.parts.compute;
  const double wait = std::max(0.0, last.parts.exposed - MeanExposed(last, *cost, last.ranks, 1));
  return *compute + MeanExposed(last, *cost, ranks, slower) +
         wait * slower * LargestOf(ranks) / LargestOf(last.ranks);
}

}  // namespace scalelab::server
