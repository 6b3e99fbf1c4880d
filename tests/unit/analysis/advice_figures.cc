#include "tests/unit/analysis/advice_figures.h"

#include <algorithm>
#include <random>
#include <vector>

#include "analysis/comparison/advise.h"
#include "tests/unit/analysis/estimate_json.h"
#include "tests/unit/analysis/fixture.h"

namespace scalelab::analysis {
namespace {

using nlohmann::json;

constexpr size_t kSizes = 4;

// A study of four world sizes.
struct Kind {
  int repeats = 0;
  double missing = 0;         // share of the repeats from the third on that fail
  bool adaptive = false;      // has as many repeats as needed
  std::vector<size_t> timed;  // the sizes whose runs report the seconds of an epoch
};

struct Advised {
  Results results;
  json input;
};

Advised MakeStudy(const Kind& kind, std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  std::vector<int> ranks = {1, 2, 4, 8};
  if (uniform(random) < 0.3) ranks = {2, 3, 8, 12};
  const double contention = 0.1 * uniform(random), coherency = 0.025 * uniform(random);
  const double noise = 0.005 + 0.03 * uniform(random);
  std::vector<double> of_block(static_cast<size_t>(kind.repeats));
  for (double& factor : of_block) factor = 1 + 0.03 * normal(random);

  Advised study;
  if (kind.adaptive) study.results.spec().mutable_adaptive_repeats()->set_min(3);
  study.input = {{"blocks", kind.repeats}, {"ranks", ranks}, {"adaptive", kind.adaptive}};
  for (size_t i = 0; i < kSizes; ++i) {
    const double p = ranks[i];
    const bool timed = std::ranges::find(kind.timed, i) != kind.timed.end();
    json cell{{"block", json::array()}, {"value", json::array()}, {"time", json::array()}};
    json seconds = json::array();
    study.results.Cell(ranks[i]);
    for (int block = 0; block < kind.repeats; ++block) {
      const double value = 100 * p / (1 + contention * (p - 1) + coherency * p * (p - 1)) *
                           of_block[static_cast<size_t>(block)] * (1 + noise * normal(random));
      if (block > 1 && uniform(random) < kind.missing) {
        study.results.Other(db::RunState::kFailed);
        continue;
      }
      study.results.Ok({value});
      cell["block"].push_back(block);
      cell["value"].push_back(value);
      if (!timed || uniform(random) < kind.missing) continue;
      study.results.last_row().epoch_seconds = 7200 / value * (1 + 0.01 * normal(random));
      seconds.push_back(*study.results.last_row().epoch_seconds);
    }
    cell["epoch_seconds"] = seconds;
    study.input["cells"].push_back(cell);
  }
  return study;
}

json Describe(const v1::Advice& advice) {
  json out{{"recommended", advice.recommended()},
           {"candidates", std::vector<int>(advice.candidates().begin(), advice.candidates().end())},
           {"cheapest", advice.cheapest()},
           {"fastest", advice.fastest()},
           {"open", json::array()}};
  for (const v1::AdvisedSize& size : advice.sizes()) {
    json& of_size = out["sizes"].emplace_back();
    of_size = {
        {"hours", AsJson(size.hours())}, {"cost", AsJson(size.cost())}, {"undecided", size.undecided()}};
    std::vector<double> medians = {size.hours().median(), size.cost().median()};
    if (size.has_gain()) {
      of_size["gain"] = AsJson(size.gain());
      medians.push_back(size.gain().median());
    }
    if (size.has_hour_price()) {
      of_size["hour_price"] = AsJson(size.hour_price());
      medians.push_back(size.hour_price().median());
    }
    of_size["medians"] = medians;
    if (size.has_in_time()) of_size["in_time"] = size.in_time();
  }
  for (const v1::OpenDecision& decision : advice.open_decisions()) {
    json& open = out["open"].emplace_back();
    open = {{"kind", v1::OpenDecision::Kind_Name(decision.kind())},
            {"ranks", std::vector<int>(decision.ranks().begin(), decision.ranks().end())}};
    if (decision.has_additional_repeats()) open["additional_repeats"] = decision.additional_repeats();
  }
  return out;
}

// Appends advice with the usual options, and with deadlines and least gains that are near the hours and the gains of
// the study.
void AddAdvice(const Kind& kind, uint64_t seed, json& out) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  const Advised study = MakeStudy(kind, random);
  const auto add = [&](const AdviceOptions& options) {
    const v1::Advice advice = study.results.Advise(options).at(0);
    json& record = out.emplace_back(study.input);
    record["min_gain"] = options.min_gain;
    record["price"] = options.rank_hour_price;
    record["deadline"] = options.deadline_hours;
    record["epochs"] = options.epochs;
    record["advice"] = Describe(advice);
    return advice;
  };
  AdviceOptions options;
  options.rank_hour_price = 2;
  options.epochs = 30;
  const v1::Advice first = add(options);
  for (int size = 1; size < static_cast<int>(kSizes); ++size) {
    const double gain = first.sizes(size).gain().mean();
    options.min_gain = std::max(0.01, gain * (1 + 0.05 * normal(random)));
    options.deadline_hours = size == 1 ? 0 : first.sizes(size).hours().mean() * (1 + 0.03 * normal(random));
    add(options);
  }
}

}  // namespace

json AdviceFigures() {
  json out;
  uint64_t seed = 0;
  for (const std::vector<size_t>& timed :
       {std::vector<size_t>{0, 1, 2, 3}, std::vector<size_t>{0}, std::vector<size_t>{0, 2},
        std::vector<size_t>{1, 2, 3}, std::vector<size_t>{}}) {
    for (const int repeats : {1, 2, 3, 4, 5, 7, 70}) AddAdvice({repeats, 0, false, timed}, ++seed, out);
    for (const int repeats : {3, 4, 5, 7}) AddAdvice({repeats, 0.2, false, timed}, ++seed, out);
    for (const int repeats : {2, 3, 5, 8, 10}) AddAdvice({repeats, 0, true, timed}, ++seed, out);
    for (const int repeats : {4, 8, 10}) AddAdvice({repeats, 0.2, true, timed}, ++seed, out);
  }
  return out;
}

}  // namespace scalelab::analysis
