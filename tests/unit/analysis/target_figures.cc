#include "tests/unit/analysis/target_figures.h"

#include <cmath>
#include <optional>
#include <random>
#include <vector>

#include "analysis/factors/reference_convergence.h"
#include "analysis/factors/time_to_target.h"

namespace scalelab::analysis {
namespace {

using nlohmann::json;

json Describe(const std::optional<double>& value) { return value ? json(*value) : json(); }

// Draws the repeats of a study. Repeats evaluate the accuracy every 100 samples, so that some of them are equal.
class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}

  double Uniform(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random_);
  }
  int Whole(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  double Samples(double mean, double deviation) {
    return 100 * std::round(mean * (1 + deviation * std::normal_distribution<double>()(random_)) / 100);
  }
  // Returns the repeats of a point. Some do not reach the target, and the samples of a few are not known.
  std::vector<TargetRepeat> Repeats(int count, double mean) {
    std::vector<TargetRepeat> repeats(static_cast<size_t>(count));
    for (TargetRepeat& repeat : repeats) {
      const double samples = Samples(mean, 0.05);
      if (Uniform(0, 1) < 0.1) continue;
      repeat.seconds = std::round(samples / 100 * Uniform(0.9, 1.1));
      if (Uniform(0, 1) > 0.01) repeat.samples = samples;
    }
    return repeats;
  }

 private:
  std::mt19937_64 random_;
};

// The samples that are needed with a batch.
double Needed(int batch) { return 5000 * (1 + batch / 300.0); }

SamplesByBatch Reference(Draw& draw, double deviation) {
  SamplesByBatch reference;
  for (const int batch : {64, 128, 256, 512, 1024}) {
    if (draw.Uniform(0, 1) < 0.3) continue;
    const double mean = Needed(batch) * draw.Uniform(0.8, 1.3);
    std::vector<std::optional<double>>& repeats = reference[batch];
    const int count = draw.Whole(3, 10);
    for (int i = 0; i < count; ++i) {
      const double samples = draw.Samples(mean, deviation);
      repeats.push_back(draw.Uniform(0, 1) < 0.05 ? std::nullopt : std::optional(samples));
    }
  }
  return reference;
}

json Describe(const std::vector<TargetRepeat>& repeats) {
  json out = json::array();
  for (const TargetRepeat& repeat : repeats)
    out.push_back({Describe(repeat.seconds), Describe(repeat.samples)});
  return out;
}

json Describe(const v1::TimeToTarget& time) {
  json out{{"n", time.n()}, {"reached", time.reached()}};
  if (time.has_seconds()) out["seconds"] = time.seconds();
  if (time.has_samples()) out["samples"] = time.samples();
  if (time.has_samples_ratio()) out["samples_ratio"] = time.samples_ratio();
  if (time.has_reference_samples()) out["reference_samples"] = time.reference_samples();
  if (time.has_reference_limit()) out["reference_limit"] = time.reference_limit();
  if (time.has_normalised_seconds()) out["normalised_seconds"] = time.normalised_seconds();
  return out;
}

// Compares a point with a base case and with a reference. `deviation` is that of the samples of the reference.
json Target(int repeats, double deviation, uint64_t seed) {
  const ReferenceTask task{"resnet20", "cifar10", 0.9};
  const std::vector<int> batches = {32, 64, 96, 128, 200, 256, 384, 512, 700, 1024, 2048};
  Draw draw(seed);
  const SamplesByBatch reference = Reference(draw, deviation);
  const int batch = batches[static_cast<size_t>(draw.Whole(0, static_cast<int>(batches.size()) - 1))];
  const std::vector<TargetRepeat> of_base = draw.Repeats(draw.Whole(2, 10), Needed(128));
  const std::vector<TargetRepeat> of_point = draw.Repeats(repeats, Needed(batch) * draw.Uniform(0.7, 1.3));
  const v1::TimeToTarget base = MakeTimeToTarget(of_base);
  v1::TimeToTarget point = MakeTimeToTarget(of_point);
  CompareConvergence(base, 128, batch, point);
  CompareWithReference({"studies/9", {{task, reference}}}, task, batch, point);
  json out{{"base", {{"repeats", Describe(of_base)}, {"time", Describe(base)}}},
           {"point", {{"repeats", Describe(of_point)}, {"time", Describe(point)}}},
           {"batch", batch},
           {"reference", json::array()}};
  for (const auto& [of_batch, samples] : reference) {
    json values = json::array();
    for (const auto& value : samples) values.push_back(Describe(value));
    out["reference"].push_back({of_batch, values});
  }
  return out;
}

}  // namespace

json TargetFigures() {
  json out;
  for (int repeats = 2; repeats <= 10; ++repeats) {
    for (const double deviation : {0.0, 0.03, 0.1, 0.4}) {
      for (int i = 0; i < 12; ++i) out.push_back(Target(repeats, deviation, out.size() + 1));
    }
  }
  return out;
}

}  // namespace scalelab::analysis
