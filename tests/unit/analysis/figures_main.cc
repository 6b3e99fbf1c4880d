// Prints the figures of a few studies with the values that they are computed from, as JSON with as many digits as a double
// has. scipy_test.py computes them again with SciPy.
#include <algorithm>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>

#include "analysis/communication.h"
#include "analysis/concurrency.h"
#include "analysis/distributions.h"
#include "analysis/factors/gradient_noise.h"
#include "analysis/factors/log_estimate.h"
#include "analysis/factors/node_comparison.h"
#include "analysis/factors/slowest.h"
#include "analysis/factors/step_parts.h"
#include "analysis/fits.h"
#include "analysis/outliers.h"
#include "analysis/precision.h"
#include "analysis/ratios.h"
#include "analysis/statistics.h"
#include "server/noise/references.h"
#include "tests/unit/analysis/advice_figures.h"
#include "tests/unit/analysis/estimate_json.h"
#include "tests/unit/analysis/fixture.h"
#include "tests/unit/analysis/prediction_figures.h"
#include "tests/unit/analysis/target_figures.h"

namespace scalelab::analysis {
namespace {

using nlohmann::json;

// A study as samples: four cells of 1, 2, 4 and 8 times the ranks of the base case.
struct Study {
  std::vector<double> ranks = {1, 2, 4, 8};
  std::vector<Sample> samples;
};

// The contention and the coherency of the cells.
struct Law {
  double contention = 0.03, coherency = 0.002;
};

Study MakeStudy(int repeats, bool timed, double missing, uint64_t seed, const Law& law = {},
                double base_ranks = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  Study study;
  for (double& ranks : study.ranks) ranks *= base_ranks;
  study.samples.resize(study.ranks.size());
  double time = 1000;
  for (int block = 0; block < repeats; ++block) {
    std::vector<size_t> order = {0, 1, 2, 3};
    std::shuffle(order.begin(), order.end(), random);
    for (const size_t cell : order) {
      const double p = study.ranks[cell];
      const double value = 100 * p / (1 + law.contention * (p - 1) + law.coherency * p * (p - 1)) *
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

std::vector<const Sample*> PointersTo(const std::vector<Sample>& samples) {
  std::vector<const Sample*> pointers;
  for (const Sample& sample : samples) pointers.push_back(&sample);
  return pointers;
}

json Describe(const Study& study, int blocks, bool fits = true) {
  const BlockBootstrap bootstrap(blocks, 1000, 0.95);
  CellRatios ratios(PointersTo(study.samples), bootstrap);
  json out{{"ranks", study.ranks}, {"blocks", blocks}};
  for (const Sample& sample : study.samples) {
    const auto mean = EstimateMean(sample.value, bootstrap.critical(), -kNoLimit, kNoLimit);
    out["cells"].push_back({{"block", sample.block},
                            {"value", sample.value},
                            {"time", sample.time},
                            {"mean", mean.mean()},
                            {"median", mean.median()},
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
                                  {"speedup", AsJson(ratio->estimate)},
                                  {"median", ratio->estimate.median()},
                                  {"stddev", ratio->estimate.stddev()}});
  }
  if (!fits) return out;
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

json Widening() {
  json out;
  for (const int n : {8, 10, 33, 64}) out.push_back({n, BlockBootstrap(n, 1000, 0.95).Widening(n)});
  return out;
}

// Every seventh value is slower by up to 50%.
json Outliers(int repeats, double missing, uint64_t seed) {
  Study study = MakeStudy(repeats, false, missing, seed);
  size_t place = 0;
  for (Sample& sample : study.samples) {
    for (double& value : sample.value) {
      if (++place % 7 == 0) value /= 1 + 0.05 * static_cast<double>(place * 3 % 11);
    }
  }
  json out{{"blocks", repeats}};
  const auto outliers = FindOutliers(PointersTo(study.samples), repeats);
  for (size_t cell = 0; cell < outliers.size(); ++cell) {
    const Sample& sample = study.samples[cell];
    json listed = json::array();
    for (const Outlier& outlier : outliers[cell]) listed.push_back({outlier.place, outlier.residual});
    out["cells"].push_back({{"block", sample.block}, {"value", sample.value}, {"outliers", listed}});
  }
  return out;
}

// Steps take 1 s without communication, 1.1 s with it and 1.3 s serially. Each kind lacks one other block.
json Communication(int repeats) {
  std::mt19937_64 random(51);
  std::normal_distribution<double> normal;
  Steps cell, none, serial;
  for (int block = 0; block < repeats; ++block) {
    const double of_block = 1 + 0.05 * normal(random);
    int missing = 1;
    for (Steps* steps : {&cell, &none, &serial}) {
      const double seconds = (steps == &cell ? 1.1 : steps == &none ? 1.0 : 1.3) * of_block;
      const double noise = 0.01 * normal(random);
      if (repeats > 4 && block == missing++) continue;
      steps->seconds.block.push_back(block);
      steps->seconds.value.push_back(seconds + noise);
    }
  }
  const BlockBootstrap bootstrap(repeats, 1000, 0.95);
  const v1::CommunicationCost cost = CompareSteps(cell, none, serial, bootstrap);
  json out{{"exposed", AsJson(cost.exposed())},
           {"total", AsJson(cost.total())},
           {"hidden", AsJson(cost.hidden())},
           {"spreads", {SpreadOf(cost.exposed()), SpreadOf(cost.total()), SpreadOf(cost.hidden())}}};
  const auto describe = [](const Steps& steps) {
    return json{{"block", steps.seconds.block}, {"value", steps.seconds.value}};
  };
  out["steps"] = {{"cell", describe(cell)}, {"none", describe(none)}, {"serial", describe(serial)}};
  return out;
}

// Attempts that begin within a minute and take up to a minute. The first ones are the repeats of a cell. One of the other attempts
// has not ended.
json ConcurrentAttempts() {
  constexpr int kAttempts = 12, kRepeats = 4;
  std::mt19937_64 random(71);
  std::uniform_int_distribution<db::Micros> within_a_minute(1, 60'000'000);
  std::vector<db::AttemptTime> attempts;
  std::vector<db::CurveRow> rows;
  json out{{"repeats", kRepeats}};
  for (int i = 0; i < kAttempts; ++i) {
    const db::Micros assigned = within_a_minute(random), finished = assigned + within_a_minute(random);
    attempts.push_back({assigned, i == kRepeats ? 0 : finished});
    out["attempts"].push_back({assigned, attempts.back().finished});
    if (i >= kRepeats) continue;
    db::CurveRow& row = rows.emplace_back();
    row.state = db::RunState::kSucceeded;
    row.started = assigned, row.finished = finished;
  }
  Results results;
  results.Cell(2).Ok(std::vector<double>(kRepeats, 100));
  const auto curve = results.Curve({}, FindConcurrency(attempts, rows));
  out["mean"] = curve.series(0).points(0).concurrent_attempts();
  out["most"] = curve.series(0).points(0).most_concurrent_attempts();
  return out;
}

json Bands() {
  json out;
  const std::vector<double> values = {100.5, 101, 99.25, 100, 102, 97.5, 100.25, 99};
  for (const std::ptrdiff_t count : {5, 6, 8}) {
    for (const double floor : {0.1, 12.0}) {
      const std::vector<double> earlier(values.begin(), values.begin() + count);
      const server::Band band = *server::BandOf(earlier, floor);
      out.push_back({earlier, floor, band.median, band.width});
    }
  }
  return out;
}

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
      run["communication"] = of_run.comm_total.has_value() ? json(*of_run.comm_total) : json();
    }
    return out;
  }
};

// A step of 256 samples takes 1.5 s on one rank. Some repeats lack the time of the communication. In others it is 0, or shorter
// than the exposed communication.
Timed MakeTimes(int ranks, double samples, int repeats, std::mt19937_64& random) {
  const double scale = samples / 256 / ranks;
  std::uniform_real_distribution<double> uniform(0.8, 1.2), communication(-0.1, 1.2);
  Timed timed;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    db::RunTimes& times = timed.times.emplace_back();
    for (int rank = 0; rank < ranks; ++rank) {
      db::RunTimes::Rank& of_rank = times.ranks.emplace_back();
      of_rank.step = 1.5 * scale * (1 + 0.01 * repeat);
      of_rank.exposed = ranks == 1 ? 0 : 0.3 * uniform(random) * scale;
      of_rank.data = 0.05 * uniform(random) * scale;
    }
    if (random() % 5 != 0) times.comm_total = std::max(0.0, communication(random)) * scale;
  }
  timed.cell = {ranks, samples, {}};
  for (int repeat = 0; repeat < repeats; ++repeat)
    timed.cell.repeats.push_back(*PartsOf(timed.times[static_cast<size_t>(repeat)], repeat));
  return timed;
}

// Strong scaling from 1 to 4 ranks, or weak scaling from 2 to 4 ranks.
json Factors(int repeats, uint64_t seed, bool weak) {
  std::mt19937_64 random(seed);
  const Timed base = MakeTimes(weak ? 2 : 1, weak ? 512 : 256, repeats, random);
  const Timed point = MakeTimes(4, weak ? 1024 : 256, repeats, random);
  const auto factors = MakeFactors(point.cell, &base.cell, CriticalValues(0.95));
  const auto slowest = *SlowestRank(point.cell, 0.95);
  json measured;
  if (factors.has_communication_seconds())
    measured = {{"seconds", AsJson(factors.communication_seconds())},
                {"hidden", AsJson(factors.hidden())},
                {"spreads", {SpreadOf(factors.communication_seconds()), SpreadOf(factors.hidden())}}};
  return {{"base", base.Input()},
          {"point", point.Input()},
          {"samples", {{"base", base.cell.samples}, {"point", point.cell.samples}}},
          {"load_balance", AsJson(factors.load_balance())},
          {"data", AsJson(factors.data())},
          {"communication", AsJson(factors.communication())},
          {"computation", AsJson(factors.computation())},
          {"product", AsJson(factors.product())},
          {"spreads",
           {SpreadOf(factors.load_balance()), SpreadOf(factors.data()), SpreadOf(factors.communication()),
            SpreadOf(factors.computation()), SpreadOf(factors.product())}},
          {"shares",
           {factors.ideal_share(), factors.slower_share(), factors.imbalance_share(), factors.data_share(),
            factors.communication_share()}},
          {"measured_communication", measured},
          {"slowest_rank", slowest.rank()},
          {"slowest", AsJson(slowest.excess())}};
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

// Runs of four cells, each on one of three nodes. A tenth of the runs are missing.
json Nodes(int repeats, bool timed, uint64_t seed) {
  const Study study = MakeStudy(repeats, timed, 0.1, seed);
  std::mt19937_64 random(seed);
  std::vector<NodeRun> runs;
  json out{{"runs", json::array()}, {"times", json::array()}};
  for (size_t cell = 0; cell < study.samples.size(); ++cell) {
    const Sample& sample = study.samples[cell];
    for (size_t i = 0; i < sample.size(); ++i) {
      const uint64_t node = random() % 3;
      runs.push_back({cell, sample.block[i], timed ? sample.time[i] : 0,
                      sample.value[i] / (1 + 0.1 * static_cast<double>(node)), std::to_string(node)});
      out["runs"].push_back({node, cell, sample.block[i], runs.back().throughput});
      if (timed) out["times"].push_back(sample.time[i]);
    }
  }
  const v1::SlowestPart slowest = CompareNodes(runs, 0.95)->slowest();
  out["node"] = std::stoi(slowest.node());
  out["excess"] = AsJson(slowest.excess());
  return out;
}

json Noise() {
  const std::vector<GradientNorms> norms = {{10.2, 4.1}, {9.7, 3.9}, {10.4, 4.3}, {9.9, 4.0}};
  v1::Estimate throughput;
  throughput.set_mean(1000), throughput.set_median(990), throughput.set_low(950), throughput.set_high(1050);
  const auto noise = MakeGradientNoise(4, 256, norms, &throughput, CriticalValues(0.95));
  json input = json::array();
  for (const GradientNorms& n : norms) input.push_back({n.of_rank, n.of_mean});
  return {
      {"norms", input},
      {"critical_batch", AsJson(noise.critical_batch())},
      {"statistical_efficiency", AsJson(noise.statistical_efficiency())},
      {"goodput", AsJson(noise.goodput())},
      {"medians",
       {noise.critical_batch().median(), noise.statistical_efficiency().median(), noise.goodput().median()}}};
}

json Describe(const v1::ComparedPair& pair) {
  return {{"first", pair.first()},
          {"second", pair.second()},
          {"effect", AsJson(pair.effect())},
          {"median", pair.effect().median()},
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

// Three engines on four days, which differ by 10%. The last engine did not run on the second day.
json Days() {
  const std::vector<std::string> keys = {R"({"engine":"e0"})", R"({"engine":"e1"})", R"({"engine":"e2"})"};
  std::mt19937_64 random(61);
  std::normal_distribution<double> normal;
  json out{{"blocks", 4}, {"engines", {json::array(), json::array(), json::array()}}};
  std::vector<Results> studies(4);
  std::vector<const Results*> pointers;
  for (size_t day = 0; day < studies.size(); ++day) {
    pointers.push_back(&studies[day]);
    for (size_t engine = 0; engine < keys.size(); ++engine) {
      std::vector<double> values;
      for (size_t repeat = 0; repeat < 2 + day % 2 && !(engine == 2 && day == 1); ++repeat)
        values.push_back(100 * (1 + 0.1 * static_cast<double>(day) + 0.05 * static_cast<double>(engine)) *
                         (1 + 0.02 * normal(random)));
      out["engines"][engine].push_back(values);
      if (!values.empty()) studies[day].Cell(2, keys[engine]).Ok(values);
    }
  }
  const auto compared = Results::Compare(pointers, "engine", 0.1);
  for (const auto& pair : compared.groups(0).pairs()) out["pairs"].push_back(Describe(pair));
  out["noise_floor"] = compared.groups(0).noise_floor();
  return out;
}

// A study that ends when its intervals are narrow, with `cells` cells and all of `blocks` blocks.
json Adaptive(size_t cells, int least, int blocks) {
  const Study study = MakeStudy(blocks, false, 0, 80 + static_cast<uint64_t>(blocks));
  Results results;
  results.spec().mutable_adaptive_repeats()->set_min(least);
  json out{{"min", least}, {"blocks", blocks}};
  for (size_t i = 0; i < cells; ++i) {
    results.Cell(static_cast<int>(study.ranks[i])).Ok(study.samples[i].value);
    out["cells"].push_back(study.samples[i].value);
  }
  out["confidence"] = SequentialConfidence(results.spec().adaptive_repeats(), cells, blocks);
  out["half_width"] = WidestHalfWidth(results.Curve()).value();
  return out;
}

json AllFigures() {
  json out{{"distributions", Distributions()}};
  for (const int n : {2, 3, 5, 7}) {
    out["studies"].push_back(Describe(MakeStudy(n, false, 0, 1), n));
    out["studies"].push_back(Describe(MakeStudy(n, true, 0, 2), n));
    out["studies"].push_back(Describe(MakeStudy(n, true, 0.2, 3), n));
  }
  // Without the fits that NumPy would compute for seconds, with a model of all values for each block that is left out.
  for (const int n : {8, 12, 70}) {
    out["studies"].push_back(Describe(MakeStudy(n, true, 0, 4), n));
    out["studies"].push_back(Describe(MakeStudy(n, false, 0.2, 5), n, n < 70));
  }
  out["studies"].push_back(Describe(MakeStudy(90, false, 0.05, 6), 90, false));
  for (const int n : {2, 5, 9, 70}) out["studies"].push_back(Describe(MakeStudy(n, true, 0, 8, {}, 2), n));
  // Parameters at the ends of their ranges.
  for (const Law& law : {Law{-0.02, 0.004}, Law{0.15, -0.004}, Law{-0.03, -0.001}, Law{1.3, 0}}) {
    for (const int n : {2, 5, 9}) out["studies"].push_back(Describe(MakeStudy(n, false, 0, 7, law), n));
  }
  out["widening"] = Widening();
  for (const int n : {6, 7, 20}) {
    out["outliers"].push_back(Outliers(n, 0, static_cast<uint64_t>(n)));
    out["outliers"].push_back(Outliers(n, 0.2, static_cast<uint64_t>(n)));
  }
  for (const int n : {3, 4, 7, 70}) out["communication"].push_back(Communication(n));
  out["concurrency"] = ConcurrentAttempts();
  out["bands"] = Bands();
  for (const int n : {2, 3, 4, 5, 8, 10}) {
    for (const uint64_t seed : {0, 100, 200, 300}) {
      for (const bool weak : {false, true})
        out["factors"].push_back(Factors(n, seed + static_cast<uint64_t>(n), weak));
    }
  }
  for (const int n : {3, 5, 7}) out["comparisons"].push_back(Comparisons(n, 20 + static_cast<uint64_t>(n)));
  out["days"] = Days();
  for (const size_t cells : {1, 2, 3, 4}) {
    for (const int least : {0, 2, 3, 4, 6}) {
      for (const int blocks : {2, 3, 4, 6, 10}) {
        if (blocks >= least) out["adaptive"].push_back(Adaptive(cells, least, blocks));
      }
    }
  }
  out["advice"] = AdviceFigures();
  out["targets"] = TargetFigures();
  out["predictions"] = PredictionFigures();
  out["units"] = UnequalUnits();
  for (const int n : {5, 8}) {
    for (const bool timed : {false, true})
      out["nodes"].push_back(Nodes(n, timed, 90 + static_cast<uint64_t>(n)));
  }
  out["noise"] = Noise();
  return out;
}

}  // namespace
}  // namespace scalelab::analysis

int main() {
  try {
    std::cout << scalelab::analysis::AllFigures().dump() << "\n";
  } catch (const std::exception& error) {
    std::cerr << "analysis_figures: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
