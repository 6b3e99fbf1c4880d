#include "tests/bench/emulation/emulated_cluster.h"

#include <algorithm>
#include <cmath>

namespace scalelab::bench {
namespace {

constexpr int kSteps = 20;
constexpr double kForward = 1.0 / 3;  // share of the computation before backward

double Uniform(std::mt19937_64& random, double low, double high) {
  return std::uniform_real_distribution<double>(low, high)(random);
}
double LogUniform(std::mt19937_64& random, double low, double high) {
  return std::exp(Uniform(random, std::log(low), std::log(high)));
}
template <class Values>
auto OneOf(std::mt19937_64& random, const Values& values) {
  return *(values.begin() + std::uniform_int_distribution<long>(0, std::ssize(values) - 1)(random));
}

// Gradients become complete from the last layer to the first; the last layers of most networks are large.
std::vector<EmulatedBucket> DrawBuckets(std::mt19937_64& random) {
  const int count = std::uniform_int_distribution<int>(2, 12)(random);
  const double bytes = LogUniform(random, 1e6, 4e8);
  std::vector<EmulatedBucket> buckets;
  std::vector<double> weights;
  double sum = 0;
  for (int i = 0; i < count; ++i) sum += weights.emplace_back(LogUniform(random, 0.3, 3));
  double ready = 0;
  for (int i = 0; i < count; ++i) {
    ready += (1 - ready) * Uniform(random, 0.2, 1.8) / (count - i + 0.8);
    buckets.push_back({i + 1 == count ? 1 : std::min(ready, 1.0), bytes * weights[i] / sum});
  }
  return buckets;
}

void DrawNoise(EmulatedConfiguration& c, std::mt19937_64& random) {
  c.noise = OneOf(random, std::vector<std::string>{"quiet", "jitter", "uneven", "hiccups", "days"});
  c.run_noise = Uniform(random, 0.002, 0.015);
  c.block_noise = c.noise == "days" ? 0.05 : 0.01;
  c.jitter = c.noise == "quiet" ? 0.002 : c.noise == "jitter" ? 0.05 : 0.01;
  c.spread = c.noise == "uneven" ? 0.03 : 0.003;
  c.hiccups = c.noise == "hiccups" ? 0.002 : 0;
}

// Returns the seconds of a ring all-reduce: 2 (p - 1) messages, each with 1 / p of the bytes, at the speed of
// the slowest link.
double RingSeconds(const EmulatedConfiguration& c, int ranks, double bytes) {
  if (ranks == 1) return 0;
  const EmulatedLink& link = ranks > c.ranks_per_node ? c.between : c.within;
  return 2 * (ranks - 1) * (link.latency + bytes / ranks * link.seconds_per_byte);
}

struct StepSums {
  double step = 0, compute = 0, exposed = 0, communication = 0;
};

// Adds one step whose ranks begin together, because the all-reduces of the step before ended together.
void AddStep(const EmulatedConfiguration& c, const std::vector<double>& compute, StepSums& sums) {
  const int ranks = static_cast<int>(compute.size());
  const double slowest = *std::ranges::max_element(compute);
  double end = 0, waiting = 0;
  for (const EmulatedBucket& bucket : c.buckets) {
    const double share = kForward + (1 - kForward) * bucket.ready;
    const double start = std::max(end, slowest * share);
    // The all-reduce of a rank begins when its own gradients are complete.
    for (const double seconds : compute) waiting += start - std::max(end, seconds * share);
    end = start + RingSeconds(c, ranks, bucket.bytes);
    sums.communication += end - start;
  }
  const double step = ranks == 1 ? slowest : std::max(slowest, end);
  sums.communication += waiting / ranks;
  sums.step += step;
  sums.compute += slowest;
  sums.exposed += step - slowest;
}

}  // namespace

EmulatedConfiguration DrawConfiguration(std::mt19937_64& random) {
  EmulatedConfiguration c;
  c.strong = Uniform(random, 0, 1) < 0.5;
  c.ranks_per_node = OneOf(random, std::vector<int>{4, 8, 16, 64});
  // Choose sizes so that several nodes were measured if the target has several nodes, because other
  // predictions are refused.
  const int most_nodes = c.ranks_per_node == 64 ? 1 : 64 / c.ranks_per_node;
  const int largest =
      c.ranks_per_node == 64 ? OneOf(random, std::vector<int>{4, 8, 16}) : std::min(32, 2 * c.ranks_per_node);
  for (int p = 1; p <= largest; p *= 2) c.measured.push_back(p);
  const int factor = OneOf(random, c.strong ? std::vector<int>{2, 4} : std::vector<int>{2, 4, 8});
  c.target = std::min({largest * factor, c.ranks_per_node * most_nodes, 64});
  c.seconds_per_sample = LogUniform(random, 2e-4, 2e-2);
  c.batch = c.strong ? 64 * OneOf(random, std::vector<int>{4, 8, 16, 32})
                     : OneOf(random, std::vector<int>{16, 32, 64});
  const double smallest_step = c.BatchOfRank(c.target) * c.seconds_per_sample;
  c.seconds_per_step = smallest_step * Uniform(random, 0, 0.3);
  c.contention = Uniform(random, 0, 0.15);
  c.buckets = DrawBuckets(random);
  double bytes = 0;
  for (const EmulatedBucket& bucket : c.buckets) bytes += bucket.bytes;
  // Choose the bandwidth so that communication takes 2% to 80% of the computation at the target size. Latency
  // causes a part of the communication.
  const double share = LogUniform(random, 0.02, 0.8);
  c.between.seconds_per_byte = share * smallest_step / (2 * bytes);
  c.within.seconds_per_byte = c.between.seconds_per_byte / Uniform(random, 1, 6);
  const double messages = 2.0 * 63 * static_cast<double>(c.buckets.size());
  c.between.latency = share * smallest_step * LogUniform(random, 0.01, 0.5) / messages;
  c.within.latency = c.between.latency / Uniform(random, 1, 10);
  c.repeats = OneOf(random, std::vector<int>{3, 5});
  DrawNoise(c, random);
  return c;
}

EmulatedRun Run(const EmulatedConfiguration& c, int ranks, double block, std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  const int on_node = std::min(ranks, c.ranks_per_node);
  const double crowded =
      c.ranks_per_node == 1 ? 1 : 1 + c.contention * (on_node - 1) / (c.ranks_per_node - 1);
  const double usual = (c.seconds_per_step + c.BatchOfRank(ranks) * c.seconds_per_sample) * crowded;
  std::vector<double> speed(static_cast<size_t>(ranks)), compute(speed.size());
  for (double& of_rank : speed) of_rank = std::exp(c.spread * normal(random));
  const double run = block * std::exp(c.run_noise * normal(random));
  StepSums sums;
  for (int step = 0; step < kSteps; ++step) {
    for (size_t rank = 0; rank < speed.size(); ++rank) {
      const double slow = Uniform(random, 0, 1) < c.hiccups ? 2 : 1;
      compute[rank] = usual * speed[rank] * run * slow * std::exp(c.jitter * normal(random));
    }
    AddStep(c, compute, sums);
  }
  EmulatedRun result;
  result.throughput = c.BatchOfRank(ranks) * ranks * kSteps / sums.step;
  result.parts = {sums.compute / kSteps, sums.exposed / kSteps, ranks == 1 ? 0 : sums.communication / kSteps,
                  c.BatchOfRank(ranks)};
  return result;
}

}  // namespace scalelab::bench
