#include "tests/unit/analysis/simulated_study.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/str_format.h"
#include "analysis/precision.h"

namespace scalelab::analysis {
namespace {

constexpr double kRunSeconds = 60;

struct Value {
  std::optional<double> throughput;
  double time = 0;
};

double Draw(const Noise& noise, std::mt19937_64& random, double& last) {
  std::normal_distribution<double> normal;
  if (noise.t_df > 0) return std::student_t_distribution<double>(noise.t_df)(random);
  const double fresh = normal(random);
  last = noise.correlation * last + std::sqrt(1 - noise.correlation * noise.correlation) * fresh;
  return noise.correlation > 0 ? last : fresh;
}

void Median(std::vector<double>& values, double& median) {
  if (values.empty()) return;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  median = values[values.size() / 2];
}

}  // namespace

std::vector<Noise> NoiseKinds() {
  return {
      {.name = "cv 1%", .run = 0.01},
      {.name = "cv 5%", .run = 0.05},
      {.name = "lognormal 20%", .run = 0.2, .multiplied = true},
      {.name = "block sd 10%", .run = 0.01, .block = 0.1},
      {.name = "t with 5 df", .run = 0.02, .t_df = 5},
      {.name = "10% of runs missing", .run = 0.02, .block = 0.05, .missing = 0.1},
      {.name = "30% of runs missing", .run = 0.02, .block = 0.05, .missing = 0.3},
      {.name = "drift 20%", .run = 0.01, .drift = 0.2, .holds = false},
      {.name = "step of 10%", .run = 0.01, .step = 0.1, .holds = false},
      {.name = "correlated 0.7", .run = 0.02, .correlation = 0.7, .holds = false},
      {.name = "10% of runs 30% slow", .run = 0.01, .slow_share = 0.1, .slow = 0.3, .holds = false},
      {.name = "sd 1% x ranks", .run_per_rank = 0.01, .holds = false},
      {.name = "slow runs 2% x ranks", .run = 0.01, .slow = 0.3, .slow_per_rank = 0.02, .holds = false},
      {.name = "t with 2 df", .run = 0.02, .t_df = 2, .holds = false},
      {.name = "drift 20%, listed", .run = 0.01, .drift = 0.2, .listed = true, .holds = false},
  };
}

std::vector<DocumentedShare> DocumentedShares() {
  return {
      {"drift 20%", 2, 2, 100.0},       {"step of 10%", 2, 3, 100.0},
      {"correlated 0.7", 2, 3, 95.2},   {"10% of runs 30% slow", 4, 5, 99.0},
      {"sd 1% x ranks", 12, 2, 91.0},   {"slow runs 2% x ranks", 4, 20, 66.5},
      {"t with 2 df", 12, 3, 99.2},     {"drift 20%, listed", 2, 10, 40.0},
      {"drift 20%, listed", 4, 5, 0.7}, {"drift 20%, listed", 12, 10, 80.7},
  };
}

double Truth::Throughput(int p) const { return 100 * p / (1 + serial * (p - 1) + coherency * p * (p - 1)); }

Results Simulate(const Truth& truth, const Noise& noise, int repeats, std::mt19937_64& random) {
  const size_t cells = truth.ranks.size() * static_cast<size_t>(truth.engines);
  std::vector<std::vector<Value>> values(cells, std::vector<Value>(static_cast<size_t>(repeats)));
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  const double runs = static_cast<double>(cells) * repeats;
  double done = 0, last = normal(random), time = 1'000'000;
  std::vector<size_t> order(cells);
  for (size_t block = 0; block < static_cast<size_t>(repeats); ++block) {
    const double of_block = std::exp(noise.block * normal(random));
    if (cells == 2 && block % 2 == 1 && !noise.listed) {  // as ExpandStudy
      std::ranges::reverse(order);
    } else {
      for (size_t i = 0; i < cells; ++i) order[i] = i;
      if (!noise.listed) std::shuffle(order.begin(), order.end(), random);
    }
    for (const size_t cell : order) {
      const int ranks = truth.ranks[cell % truth.ranks.size()];
      const size_t engine = cell / truth.ranks.size();
      const double deviation = noise.run + noise.run_per_rank * ranks;
      const double draw = Draw(noise, random, last);
      double throughput =
          truth.Throughput(ranks) * (1 + static_cast<double>(engine) * truth.engine_gain) * of_block;
      throughput *= noise.multiplied || deviation * std::abs(draw) > 0.5 ? std::exp(deviation * draw)
                                                                         : 1 + deviation * draw;
      if (uniform(random) < noise.slow_share + noise.slow_per_rank * ranks) throughput /= 1 + noise.slow;
      throughput *= 1 - noise.drift * done / runs;
      if (done >= runs / 2) throughput *= 1 - noise.step;
      values[cell][block].time = time;
      if (uniform(random) >= noise.missing) values[cell][block].throughput = throughput;
      time += kRunSeconds * (0.9 + 0.2 * uniform(random));
      ++done;
    }
  }
  Results results(noise.listed ? R"({"order":"LISTED"})" : "{}");
  for (size_t cell = 0; cell < cells; ++cell) {
    const std::string engine = "engine/" + std::to_string(cell / truth.ranks.size());
    results.Cell(truth.ranks[cell % truth.ranks.size()], R"({"engine":")" + engine + "\"}");
    for (const Value& value : values[cell]) {
      if (value.throughput.has_value()) {
        results.Ok({*value.throughput});
      } else {
        results.Other(db::RunState::kFailed);
      }
      results.last_row().started = static_cast<db::Micros>(value.time * 1e6);
    }
  }
  return results;
}

Coverage SpeedupCoverage(const Noise& noise, int cells, int repeats, int studies, uint64_t seed) {
  Truth truth;
  if (cells == 2) truth.ranks = {1, 8};
  truth.engines = std::max(1, cells / 4);
  const double speedup = truth.Throughput(8) / truth.Throughput(1);
  std::mt19937_64 random(seed);
  Coverage coverage;
  std::vector<double> halves;
  for (int study = 0; study < studies; ++study) {
    const auto curve = Simulate(truth, noise, repeats, random).Curve({.resamples = 1000, .confidence = 0.95});
    const auto& points = curve.series(0).points();
    const auto& estimate = points[points.size() - 1].speedup();
    if (!estimate.has_low() || curve.series(0).baseline_ranks() != 1) continue;
    coverage.covered += estimate.low() <= speedup && speedup <= estimate.high();
    halves.push_back(std::log(estimate.high() / estimate.low()) / 2);
  }
  coverage.shown = static_cast<double>(halves.size()) / studies;
  coverage.covered /= std::max<double>(1, static_cast<double>(halves.size()));
  Median(halves, coverage.half_width);
  return coverage;
}

AdaptiveCoverage AdaptiveStudies(const Truth& truth, const Noise& noise, const AdaptiveRule& rule,
                                 int studies, uint64_t seed) {
  std::mt19937_64 random(seed);
  AdaptiveCoverage coverage;
  const double speedup = truth.Throughput(truth.ranks.back()) / truth.Throughput(truth.ranks.front());
  const auto recommended = [](const Results& results) {
    return results.Advise({.min_gain = 0.5})[0].recommended();
  };
  for (int study = 0; study < studies; ++study) {
    Results all = Simulate(truth, noise, rule.max, random);
    const int fixed = recommended(all);
    all.spec().mutable_adaptive_repeats()->set_min(rule.min);
    for (int blocks = rule.min;; ++blocks) {
      const Results results = all.FirstBlocks(blocks);
      const auto curve = results.Curve({.resamples = 200, .confidence = 0.95});
      if (blocks < rule.max && !(WidestHalfWidth(curve).value_or(HUGE_VAL) <= rule.half_width)) continue;
      const auto& points = curve.series(0).points();
      const auto& estimate = points[points.size() - 1].speedup();
      coverage.covered += estimate.has_low() && estimate.low() <= speedup && speedup <= estimate.high();
      coverage.blocks += blocks;
      coverage.same_decision += recommended(results) == fixed;
      break;
    }
  }
  coverage.covered /= studies;
  coverage.blocks /= studies;
  coverage.same_decision /= studies;
  return coverage;
}

Coverage FitCoverage(double serial, bool usl, const Noise& noise, int repeats, int studies, uint64_t seed,
                     bool contention) {
  Truth truth;
  truth.ranks = {1, 2, 4, 8, 16};
  truth.serial = serial;
  if (usl) truth.coherency = 0.001;
  std::string parameter = "serial_fraction";
  if (usl) parameter = contention ? "contention" : "coherency";
  std::mt19937_64 random(seed);
  Coverage coverage;
  std::vector<double> halves;
  for (int study = 0; study < studies; ++study) {
    const auto curve = Simulate(truth, noise, repeats, random).Curve({.resamples = 1000, .confidence = 0.95});
    if (curve.series(0).fits_size() < 2) continue;
    const auto& fit = curve.series(0).fits(usl ? 1 : 0);
    const auto& estimate = fit.parameters().at(parameter);
    if (!estimate.has_low()) continue;
    const double expected = usl && !contention ? truth.coherency : serial;
    coverage.covered += estimate.low() <= expected && expected <= estimate.high();
    halves.push_back((estimate.high() - estimate.low()) / 2);
  }
  coverage.shown = static_cast<double>(halves.size()) / studies;
  coverage.covered /= std::max<double>(1, static_cast<double>(halves.size()));
  Median(halves, coverage.half_width);
  return coverage;
}

double FalseRefutations(const Noise& noise, int repeats, int studies, uint64_t seed, bool usl) {
  Truth truth;
  if (usl) truth.coherency = 0.001;
  const int fit = usl ? 1 : 0;
  truth.ranks = {1, 2, 4, 8, 16};
  std::mt19937_64 random(seed);
  double refuted = 0;
  for (int study = 0; study < studies; ++study) {
    const auto curve = Simulate(truth, noise, repeats, random).Curve({.resamples = 200, .confidence = 0.95});
    const auto& fits = curve.series(0).fits();
    refuted += fits.size() > fit && fits[fit].lack_of_fit().rejected();
  }
  return refuted / studies;
}

std::vector<Truth> AdviceTruths() {
  std::vector<Truth> truths(5);
  truths[0] = {.ranks = {1, 2, 4, 8, 16}, .serial = 0.001};
  truths[1] = {.ranks = {1, 2, 4, 8, 16}, .serial = 0.05};
  truths[2] = {.ranks = {1, 2, 4, 8, 16}, .serial = 0.15};
  truths[3] = {.ranks = {1, 2, 4, 8, 16}, .serial = 0.6};
  truths[4] = {.ranks = {1, 2, 4, 8, 16, 32}, .serial = 0.01, .coherency = 0.002};
  return truths;
}

std::vector<NearTruth> AdviceTruthsNearTheLimit() {
  const std::vector<int> ranks = {1, 2, 4, 8, 16};
  const Noise low = {.name = "noise 2%, gain ", .run = 0.02, .block = 0.03};
  const Noise high = {.name = "noise 5%, gain ", .run = 0.05, .block = 0.03};
  // The logarithms of the gains + 1 differ from log(1.5) by 2.3% and -2.3%, where the standard error is 1.26%, and by 5.7%
  // and -5.7%, where it is 3.16%.
  std::vector<NearTruth> truths = {
      {{.ranks = ranks, .serial = 0.0516}, low},
      {{.ranks = ranks, .serial = 0.0668}, low},
      {{.ranks = ranks, .serial = 0.042}, high},
      {{.ranks = ranks, .serial = 0.01, .coherency = 0.00224}, high},
  };
  for (NearTruth& near : truths)
    near.noise.name +=
        absl::StrFormat("%.1f%%", 100 * (near.truth.Throughput(16) / near.truth.Throughput(8) - 1));
  return truths;
}

Decisions AdviceDecisions(const Truth& truth, int studies, uint64_t seed, const Noise& noise) {
  constexpr double kMinGain = 0.5;
  int best = truth.ranks[0];
  for (size_t i = 1; i < truth.ranks.size(); ++i) {
    if (truth.Throughput(truth.ranks[i]) / truth.Throughput(truth.ranks[i - 1]) - 1 < kMinGain) break;
    best = truth.ranks[i];
  }
  std::mt19937_64 random(seed);
  Decisions decisions;
  double undecided = 0;
  for (int study = 0; study < studies; ++study) {
    const auto advice = Simulate(truth, noise, 5, random).Advise({.min_gain = kMinGain});
    const bool right = advice[0].recommended() == best, open = advice[0].candidates_size() > 1;
    decisions.right += right;
    decisions.open += open;
    undecided += !right && open;
  }
  const double wrong = studies - decisions.right;
  decisions.undecided = wrong > 0 ? undecided / wrong : 1;
  decisions.right /= studies;
  decisions.open /= studies;
  return decisions;
}

}  // namespace scalelab::analysis
