#include "tests/bench/coverage_bench.h"

#include "absl/strings/str_cat.h"
#include "tests/unit/analysis/simulated_study.h"

namespace scalelab::bench {
namespace {

constexpr uint64_t kSeed = 20'261'123;
constexpr double kNominal = 95;

Figure FigureOf(std::string name, const analysis::Coverage& coverage) {
  const double percent = 100 * coverage.covered;
  return {
      std::move(name),     percent, "%", "nominal", kNominal, percent / kNominal, 100 * coverage.half_width,
      100 * coverage.shown};
}

}  // namespace

std::vector<Figure> RunCoverageBench(const BenchOptions& options) {
  const int studies = std::max(20, static_cast<int>(1000 * options.scale));
  std::vector<Figure> figures;
  for (const analysis::Noise& noise : analysis::NoiseKinds()) {
    for (const int cells : {2, 4, 12}) {
      for (const int n : {2, 3, 5, 10, 20, 100})
        figures.push_back(FigureOf(absl::StrCat("coverage/", noise.name, "/", cells, " cells/n=", n),
                                   analysis::SpeedupCoverage(noise, cells, n, studies, kSeed)));
    }
  }
  const analysis::Noise noise = analysis::NoiseKinds()[1];
  for (const int n : {3, 5, 10}) {
    for (const double serial : {0.001, 0.05})
      figures.push_back(FigureOf(absl::StrCat("coverage/Amdahl's fraction ", serial, "/n=", n),
                                 analysis::FitCoverage(serial, false, noise, n, studies, kSeed)));
    figures.push_back(FigureOf(absl::StrCat("coverage/coherency 0.001/n=", n),
                               analysis::FitCoverage(0.01, true, noise, n, studies, kSeed)));
    figures.push_back(FigureOf(absl::StrCat("coverage/contention 0.001/n=", n),
                               analysis::FitCoverage(0.001, true, noise, n, studies, kSeed, true)));
    for (const bool usl : {false, true}) {
      const double refuted = 100 * analysis::FalseRefutations(noise, n, studies, kSeed, usl);
      figures.push_back({absl::StrCat("coverage/true ", usl ? "USL" : "Amdahl's law", " refuted/n=", n),
                         refuted, "%", "nominal", 5, refuted / 5});
    }
  }
  for (const int min : {2, 3}) {
    for (const int cells : {2, 4}) {
      for (const double run : {0.002, 0.005, 0.01, 0.02, 0.04}) {
        analysis::Truth truth;
        if (cells == 2) truth.ranks = {1, 8};
        const auto coverage = analysis::AdaptiveStudies(
            truth, {.name = "", .run = run, .block = 0.1, .multiplied = true}, {.min = min}, studies, kSeed);
        const std::string name = absl::StrCat("coverage/until half_width 2%, min ", min, "/noise ", 100 * run,
                                              "%/", cells, " cells");
        figures.push_back(
            {name, 100 * coverage.covered, "%", "nominal", kNominal, 100 * coverage.covered / kNominal});
        figures.push_back({name + "/runs of 10 repeats", 10 * coverage.blocks, "%"});
        figures.push_back({name + "/same advice as 10 repeats", 100 * coverage.same_decision, "%"});
      }
    }
  }
  return figures;
}

std::vector<Figure> RunAdviseBench(const BenchOptions& options) {
  const int studies = std::max(40, static_cast<int>(1000 * options.scale));
  std::vector<Figure> figures;
  double right = 0, undecided = 0, others = 0;
  for (const analysis::Truth& truth : analysis::AdviceTruths()) {
    const analysis::Decisions decisions = analysis::AdviceDecisions(truth, studies, kSeed);
    const std::string name = absl::StrCat("advice/serial ", truth.serial, ", coherency ", truth.coherency);
    figures.push_back(
        {name + "/right", 100 * decisions.right, "%", "target", 90, 100 * decisions.right / 90});
    figures.push_back({name + "/undecided of the others", 100 * decisions.undecided, "%"});
    right += decisions.right / static_cast<double>(analysis::AdviceTruths().size());
    others += 1 - decisions.right;
    undecided += decisions.undecided * (1 - decisions.right);
  }
  for (const analysis::NearTruth& near : analysis::AdviceTruthsNearTheLimit()) {
    const analysis::Decisions decisions = analysis::AdviceDecisions(near.truth, studies, kSeed, near.noise);
    const std::string name = absl::StrCat("advice/near the limit/", near.noise.name);
    figures.push_back(
        {name + "/right", 100 * decisions.right, "%", "target", 90, 100 * decisions.right / 90});
    figures.push_back({name + "/undecided", 100 * decisions.open, "%"});
    figures.push_back({name + "/undecided of the others", 100 * decisions.undecided, "%"});
  }
  figures.push_back({"advice/right", 100 * right, "%", "target", 90, 100 * right / 90});
  figures.push_back({"advice/undecided of the others", others > 0 ? 100 * undecided / others : 100, "%"});
  return figures;
}

}  // namespace scalelab::bench
