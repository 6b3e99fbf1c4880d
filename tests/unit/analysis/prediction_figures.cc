#include "tests/unit/analysis/prediction_figures.h"

#include <optional>
#include <random>
#include <vector>

#include "server/prediction/bucket_replay.h"
#include "server/prediction/conformal.h"
#include "server/prediction/models.h"
#include "server/prediction/replay.h"

namespace scalelab::analysis {
namespace {

using nlohmann::json;

json Models(double serial, double coherency, int base_ranks = 1) {
  constexpr int kRanks = 48;
  std::vector<server::MeasuredSize> measured;
  json input;
  for (const int times : {1, 2, 4, 8, 16}) {
    const int ranks = base_ranks * times;
    const double wobble = 1 + 0.01 * (ranks % 3), p = ranks;
    measured.push_back({ranks, 500 * wobble * p / (1 + serial * (p - 1) + coherency * p * (p - 1))});
    input.push_back({ranks, measured.back().throughput});
  }
  json out{{"measured", input}, {"ranks", kRanks}, {"predicted", server::PredictByModels(measured, kRanks)}};
  for (const double replayed : {0.0, 7000.0}) {  // 0: without the model "replay"
    const server::PredictedThroughput predicted = server::PredictThroughput(
        measured, kRanks, 0.03, replayed > 0 ? std::optional<double>(replayed) : std::nullopt);
    json& envelope = out["envelopes"].emplace_back();
    envelope = {{"noise", 0.03}, {"mean", predicted.mean}, {"low", predicted.low}, {"high", predicted.high}};
    if (replayed > 0) envelope["replayed"] = replayed;
  }
  return out;
}

// A study whose ranks recorded buckets. The base case has the fewest ranks, the largest size 8 times as many.
struct Recorded {
  bool strong = true;
  server::RingCost ring;
  double communication = 0;  // of the largest size, as a multiple of its computation
  int base_ranks = 1;
};

std::vector<server::RecordedSize> MakeSizes(const Recorded& recorded, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> wobble(0.9, 1.1);
  std::vector<server::RecordedSize> sizes;
  for (const int times : {1, 2, 4, 8}) {
    const int ranks = recorded.base_ranks * times;
    server::RecordedSize& size = sizes.emplace_back();
    size.ranks = ranks;
    size.parts.batch = recorded.strong ? 256.0 / ranks : 64;
    size.parts.compute = (0.1 + 0.01 * size.parts.batch) * wobble(random);
    if (ranks > 1) {
      size.parts.exposed = 0.004 * ranks * wobble(random);
      size.parts.communication = size.parts.compute * recorded.communication * times / 8 * wobble(random);
    }
    for (int run = 0; run < 3; ++run) {
      server::RecordedStep& step = size.steps.emplace_back();
      step.backward = 0.6 * size.parts.compute * wobble(random);
      for (const int bucket : {1, 2, 3}) {
        server::RecordedBucket& of_step = step.buckets.emplace_back();
        of_step.bytes = 1e6 * bucket * bucket;
        of_step.ready = step.backward * bucket / 3;
        if (ranks > 1) of_step.reduce = recorded.ring.Seconds(ranks, of_step.bytes) * wobble(random);
      }
    }
  }
  return sizes;
}

json Describe(const server::RecordedSize& size) {
  json out{{"ranks", size.ranks},
           {"batch", size.parts.batch},
           {"compute", size.parts.compute},
           {"exposed", size.parts.exposed},
           {"communication", size.parts.communication}};
  for (const server::RecordedStep& step : size.steps) {
    json& of_step = out["steps"].emplace_back();
    of_step["backward"] = step.backward;
    for (const server::RecordedBucket& bucket : step.buckets)
      of_step["buckets"].push_back({bucket.bytes, bucket.ready, bucket.reduce});
  }
  return out;
}

json Replay(const Recorded& recorded, int ranks_per_node, const std::optional<server::RingCost>& network) {
  constexpr int kRanks = 32;
  const std::vector<server::RecordedSize> sizes = MakeSizes(recorded, 41);
  const double batch = recorded.strong ? 256.0 / kRanks : 64;
  std::vector<server::PartsOfSize> parts;
  json out{{"ranks", kRanks}, {"ranks_per_node", ranks_per_node}, {"batch", batch}};
  for (const server::RecordedSize& size : sizes) {
    parts.push_back({size.ranks, size.parts});
    out["sizes"].push_back(Describe(size));
  }
  if (network) out["network"] = {network->alpha, network->beta};
  out["buckets"] = server::ReplayBuckets(sizes, kRanks, batch, ranks_per_node, network).value();
  out["mean_steps"] = server::ReplayStep(parts, kRanks, batch, ranks_per_node).value();
  return out;
}

}  // namespace

json PredictionFigures() {
  json out;
  out["models"] = {Models(0.01, 0), Models(0.2, 0), Models(0.02, 0.001), Models(0.05, -0.0005),
                   Models(0.02, 0.001, 2)};
  const server::RingCost fast{2e-4, 1e-9}, slow{1e-3, 2e-8};
  for (const bool strong : {true, false}) {
    for (const int ranks_per_node : {0, 4}) {
      out["replays"].push_back(Replay({strong, fast, 0.1}, ranks_per_node, std::nullopt));
      out["replays"].push_back(Replay({strong, slow, 1.5}, ranks_per_node, std::nullopt));
    }
    out["replays"].push_back(Replay({strong, fast, 0.1}, 0, slow));
    out["replays"].push_back(Replay({strong, slow, 1.5, 2}, 0, std::nullopt));
  }
  std::vector<server::AllReduceTime> times;
  for (const int ranks : {2, 4, 8}) {
    for (const double bytes : {1e3, 1e6, 2.5e7}) {
      const double p = ranks, wobble = 1 + 0.05 * ((ranks + static_cast<int>(bytes / 1e3)) % 3);
      times.push_back({ranks, bytes, wobble * (2 * (p - 1) * 2e-5 + 2 * (p - 1) / p * bytes / 1e9)});
      out["all_reduces"].push_back({ranks, bytes, times.back().seconds});
    }
  }
  const server::RingCost ring = server::FitRing(times);
  out["ring"] = {ring.alpha, ring.beta};
  std::vector<double> scores;
  for (int i = 0; i < 37; ++i) scores.push_back(0.1 + 0.05 * (i * 7 % 37));
  out["scores"] = scores;
  out["conformal"] = server::ConformalFactor(scores);
  return out;
}

}  // namespace scalelab::analysis
