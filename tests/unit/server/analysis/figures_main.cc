// Prints the figures of a few studies with the values that they are computed from, as JSON. scipy_test.py computes them
// again with SciPy.
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>

#include "server/analysis/distributions.h"
#include "server/analysis/factors/gradient_noise.h"
#include "server/analysis/factors/log_estimate.h"
#include "server/analysis/factors/slowest.h"
#include "server/analysis/factors/step_parts.h"
#include "server/analysis/factors/time_to_target.h"
#include "server/analysis/fits.h"
#include "server/analysis/ratios.h"
#include "server/analysis/statistics.h"
#include "server/prediction/bucket_replay.h"
#include "server/prediction/conformal.h"
#include "server/prediction/models.h"
#include "tests/unit/server/analysis/fixture.h"

namespace scalelab::server {
namespace {

using nlohmann::json;

// A study as samples: four cells of 1, 2, 4 and 8 ranks.
struct Study {
  std::vector<double> ranks = {1, 2, 4, 8};
  std::vector<Sample> samples;
};

Study MakeStudy(int repeats, bool timed, double missing, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  Study study;
  study.samples.resize(study.ranks.size());
  double time = 1000;
  for (int block = 0; block < repeats; ++block) {
    std::vector<size_t> order = {0, 1, 2, 3};
    std::shuffle(order.begin(), order.end(), random);
    for (const size_t cell : order) {
      const double p = study.ranks[cell];
      const double value = 100 * p / (1 + 0.03 * (p - 1) + 0.002 * p * (p - 1)) *
                           (1 + 0.03 * normal(random)) * (1 + 0.05 * block);
      time += 50 + 20 * uniform(random);
      if (block > 1 && uniform(random) < missing) continue;
      Sample& sample = study.samples[cell];
      sample.block.push_back(block);
      sample.value.push_back(value);
      if (timed) sample.time.push_back(time);
    }
  }
  return study;
}

json Describe(const Study& study, int blocks) {
  const BlockBootstrap bootstrap(blocks, 1000, 0.95);
  std::vector<const Sample*> pointers;
  for (const Sample& sample : study.samples) pointers.push_back(&sample);
  CellRatios ratios(pointers, bootstrap);
  json out{{"ranks", study.ranks}, {"blocks", blocks}};
  for (const Sample& sample : study.samples) {
    const auto mean = EstimateMean(sample.value, bootstrap.critical(), -kNoLimit, kNoLimit);
    out["cells"].push_back({{"block", sample.block},
                            {"value", sample.value},
                            {"time", sample.time},
                            {"mean", mean.mean()},
                            {"stddev", mean.stddev()},
                            {"low", mean.low()},
                            {"high", mean.high()}});
  }
  const BlockModel& model = *ratios.model();
  out["model"] = {{"drift", model.has_drift()}, {"df", model.df()}, {"variance", model.variance()}};
  for (size_t i = 1; i < study.samples.size(); ++i) {
    const auto difference = model.Compare(i, 0);
    const auto ratio = ratios.Compare(i, 0);
    out["differences"].push_back({{"ratio", difference->ratio},
                                  {"error", difference->error},
                                  {"df", difference->df},
                                  {"low", ratio->estimate.low()},
                                  {"high", ratio->estimate.high()}});
  }
  for (const auto& fit : FitLaws(study.ranks, {0, 1, 2, 3}, 0, ratios)) {
    json parameters;
    for (const auto& [name, estimate] : fit.parameters())
      parameters[name] = {estimate.mean(), estimate.low(), estimate.high()};
    out["fits"].push_back({{"law", fit.law()},
                           {"parameters", parameters},
                           {"f", fit.lack_of_fit().f()},
                           {"p", fit.lack_of_fit().p()},
                           {"deviation_df", fit.lack_of_fit().deviation_df()},
                           {"noise_df", fit.lack_of_fit().noise_df()}});
  }
  return out;
}

json Distributions() {
  json out;
  for (const double df : {1.0, 2.5, 4.0, 30.0}) {
    for (const double p : {0.8, 0.975}) out["t"].push_back({p, df, StudentQuantile(p, df)});
    for (const int groups : {2, 3, 6, 10})
      out["range"].push_back({groups, df, StudentizedRangeQuantile(0.95, groups, df)});
    out["f"].push_back({3.3, 2, df, FisherTail(3.3, 2, df)});
  }
  return out;
}

json Describe(const v1::Estimate& e) { return {e.mean(), e.low(), e.high()}; }

// Times of `repeats` repeats on `ranks` ranks, as scipy_test.py reads them.
struct Timed {
  std::vector<db::RunTimes> times;
  StepCell cell;
  json Input() const {
    json out = json::array();
    for (const db::RunTimes& of_run : times) {
      json& run = out.emplace_back();
      for (const db::RunTimes::Rank& rank : of_run.ranks) {
        run["step"].push_back(rank.step);
        run["exposed"].push_back(rank.exposed);
        run["data"].push_back(rank.data);
      }
    }
    return out;
  }
};

Timed MakeTimes(int ranks, int repeats, std::mt19937_64& random) {
  std::uniform_real_distribution<double> uniform(0.8, 1.2);
  Timed timed;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    db::RunTimes& times = timed.times.emplace_back();
    for (int rank = 0; rank < ranks; ++rank) {
      db::RunTimes::Rank& of_rank = times.ranks.emplace_back();
      of_rank.step = 1.5 / ranks * (1 + 0.01 * repeat);
      of_rank.exposed = ranks == 1 ? 0 : 0.3 * uniform(random) / ranks;
      of_rank.data = 0.05 * uniform(random) / ranks;
    }
  }
  timed.cell = {ranks, 256, {}};
  for (int repeat = 0; repeat < repeats; ++repeat)
    timed.cell.repeats.push_back(*PartsOf(timed.times[static_cast<size_t>(repeat)], repeat));
  return timed;
}

json Factors(int repeats, uint64_t seed) {
  std::mt19937_64 random(seed);
  const Timed base = MakeTimes(1, repeats, random), point = MakeTimes(4, repeats, random);
  const auto factors = MakeFactors(point.cell, &base.cell, CriticalValues(0.95));
  const auto slowest = *SlowestRank(point.cell, 0.95);
  return {{"base", base.Input()},
          {"point", point.Input()},
          {"load_balance", Describe(factors.load_balance())},
          {"data", Describe(factors.data())},
          {"communication", Describe(factors.communication())},
          {"computation", Describe(factors.computation())},
          {"product", Describe(factors.product())},
          {"shares",
           {factors.ideal_share(), factors.slower_share(), factors.imbalance_share(), factors.data_share(),
            factors.communication_share()}},
          {"slowest_rank", slowest.rank()},
          {"slowest", Describe(slowest.excess())}};
}

json UnequalUnits() {
  std::mt19937_64 random(11);
  std::normal_distribution<double> normal(0, 0.05);
  std::vector<UnitValue> values;
  json input = json::array();
  for (int repeat = 0; repeat < 6; ++repeat) {
    for (int unit = 0; unit < 5; ++unit) {
      if ((unit + repeat) % 3 == 0) continue;
      values.push_back({unit, repeat, 0.04 * unit + 0.3 * repeat + normal(random)});
      input.push_back({unit, repeat, values.back().log_seconds});
    }
  }
  const SlowestUnit slowest = *FindSlowest(values, 5, 0.95);
  return {{"values", input}, {"unit", slowest.unit}, {"effect", slowest.effect}, {"half", slowest.half}};
}

json Noise() {
  const std::vector<GradientNorms> norms = {{10.2, 4.1}, {9.7, 3.9}, {10.4, 4.3}, {9.9, 4.0}};
  v1::Estimate throughput;
  throughput.set_mean(1000), throughput.set_low(950), throughput.set_high(1050);
  const auto noise = MakeGradientNoise(4, 256, norms, &throughput, CriticalValues(0.95));
  json input = json::array();
  for (const GradientNorms& n : norms) input.push_back({n.of_rank, n.of_mean});
  return {{"norms", input},
          {"critical_batch", Describe(noise.critical_batch())},
          {"statistical_efficiency", Describe(noise.statistical_efficiency())},
          {"goodput", Describe(noise.goodput())}};
}

json Describe(const v1::ComparedPair& pair) {
  return {{"first", pair.first()},
          {"second", pair.second()},
          {"effect", Describe(pair.effect())},
          {"equivalence_p", pair.equivalence_p()}};
}

// Four engines on the same number of ranks, as one study with common blocks and as three studies of different lengths.
json Comparisons(int repeats, uint64_t seed) {
  const Study study = MakeStudy(repeats, false, 0, seed);
  json out{{"blocks", repeats}};
  Results engines;
  for (size_t i = 0; i < study.samples.size(); ++i) {
    const Sample& sample = study.samples[i];
    engines.Cell(2, R"({"engine":"e)" + std::to_string(i) + "\"}").Ok(sample.value);
    out["cells"].push_back({{"block", sample.block}, {"value", sample.value}, {"time", json::array()}});
  }
  const auto compared = Results::Compare({&engines}, "engine", 0.1);
  for (const auto& pair : compared.groups(0).pairs()) out["pairs"].push_back(Describe(pair));
  out["noise_floor"] = compared.groups(0).noise_floor();

  std::vector<Results> studies(3);
  for (size_t i = 0; i < studies.size(); ++i) {
    std::vector<double> values = study.samples[i].value;
    values.resize(values.size() - (i == 1 ? 1 : 0));
    studies[i].Cell(2).Ok(values);
    out["studies"].push_back(values);
  }
  const auto two = Results::Compare({&studies[0], &studies[1]}, "study", 0.1);
  out["two_studies"] = Describe(two.groups(0).pairs(0));
  const auto three = Results::Compare({&studies[0], &studies[1], &studies[2]}, "study", 0.1);
  for (const auto& pair : three.groups(0).pairs()) out["three_studies"].push_back(Describe(pair));
  return out;
}

json Advised(bool adaptive) {
  const Study study = MakeStudy(5, false, 0, 31);
  json out{{"blocks", 5}, {"ranks", study.ranks}, {"adaptive", adaptive}};
  Results results;
  if (adaptive) results.spec().mutable_adaptive_repeats()->set_min(3);
  for (size_t i = 0; i < study.samples.size(); ++i) {
    const Sample& sample = study.samples[i];
    results.Cell(static_cast<int>(study.ranks[i]));
    json epochs;
    for (const double value : sample.value) {
      results.Ok({value});
      results.last_row().epoch_seconds = 7200 / value;
      epochs.push_back(7200 / value);
    }
    out["cells"].push_back({{"block", sample.block},
                            {"value", sample.value},
                            {"time", json::array()},
                            {"epoch_seconds", epochs}});
  }
  const v1::Advice advice =
      results.Advise({.min_gain = 0.5, .rank_hour_price = 2, .deadline_hours = 0, .epochs = 30}).at(0);
  for (const auto& size : advice.sizes()) {
    json& of_size = out["sizes"].emplace_back();
    of_size = {{"hours", Describe(size.hours())}, {"cost", Describe(size.cost())}};
    if (size.has_gain()) of_size["gain"] = Describe(size.gain());
    if (size.has_hour_price()) of_size["hour_price"] = Describe(size.hour_price());
  }
  return out;
}

json Targets() {
  const std::vector<double> seconds = {40.5, 38.25, 51, 39, 44.75};
  std::vector<TargetRepeat> repeats;
  for (const double s : seconds) repeats.push_back({s, 100 * s});
  const auto all = MakeTimeToTarget(repeats);
  repeats[1] = {};
  const auto missed = MakeTimeToTarget(repeats);
  return {{"seconds", seconds},
          {"all", all.seconds()},
          {"missed", 1},
          {"without_missed", missed.seconds()},
          {"samples", all.samples()}};
}

json Predictions() {
  json out;
  for (const double serial : {0.01, 0.2}) {
    std::vector<MeasuredSize> measured;
    json input;
    for (const int ranks : {1, 2, 4, 8, 16}) {
      const double wobble = 1 + 0.01 * (ranks % 3);
      measured.push_back({ranks, 500 * wobble * ranks / (1 + serial * (ranks - 1))});
      input.push_back({ranks, measured.back().throughput});
    }
    out["models"].push_back(
        {{"measured", input}, {"ranks", 48}, {"predicted", PredictByModels(measured, 48)}});
  }
  std::vector<AllReduceTime> times;
  for (const int ranks : {2, 4, 8}) {
    for (const double bytes : {1e3, 1e6, 2.5e7}) {
      const double p = ranks, wobble = 1 + 0.05 * ((ranks + static_cast<int>(bytes / 1e3)) % 3);
      times.push_back({ranks, bytes, wobble * (2 * (p - 1) * 2e-5 + 2 * (p - 1) / p * bytes / 1e9)});
      out["all_reduces"].push_back({ranks, bytes, times.back().seconds});
    }
  }
  const RingCost ring = FitRing(times);
  out["ring"] = {ring.alpha, ring.beta};
  std::vector<double> scores;
  for (int i = 0; i < 37; ++i) scores.push_back(0.1 + 0.05 * (i * 7 % 37));
  out["scores"] = scores;
  out["conformal"] = ConformalFactor(scores);
  return out;
}

}  // namespace
}  // namespace scalelab::server

int main() {
  using namespace scalelab::server;
  nlohmann::json out{{"distributions", Distributions()}};
  for (const int n : {2, 3, 5, 7}) {
    out["studies"].push_back(Describe(MakeStudy(n, false, 0, 1), n));
    out["studies"].push_back(Describe(MakeStudy(n, true, 0, 2), n));
    out["studies"].push_back(Describe(MakeStudy(n, true, 0.2, 3), n));
  }
  for (const int n : {2, 3, 8}) out["factors"].push_back(Factors(n, static_cast<uint64_t>(n)));
  for (const int n : {3, 5, 7}) out["comparisons"].push_back(Comparisons(n, static_cast<uint64_t>(20 + n)));
  for (const bool adaptive : {false, true}) out["advice"].push_back(Advised(adaptive));
  out["targets"] = Targets();
  out["predictions"] = Predictions();
  out["units"] = UnequalUnits();
  out["noise"] = Noise();
  std::cout << out.dump() << "\n";
}
