// Studies with a known truth and many kinds of noise, for tests of intervals and decisions.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/unit/analysis/fixture.h"

namespace scalelab::analysis {

// The disturbances of the throughput of a run. Deviations are shares of the throughput.
struct Noise {
  std::string name;
  double run = 0;            // standard deviation of a run
  double run_per_rank = 0;   // the same for each rank of the run
  double block = 0;          // standard deviation of a block, common to its cells
  double slow_share = 0;     // share of runs that are slower
  double slow = 0;           // by this share
  double slow_per_rank = 0;  // share of slow runs for each rank of the run
  double drift = 0;          // loss of throughput from the first run to the last
  double step = 0;           // loss of throughput in the second half, all at once
  double correlation = 0;    // correlation of the noise of consecutive runs
  int t_df = 0;              // noise of Student's t distribution with this many degrees of freedom; 0: normal
  bool multiplied = false;   // lognormal noise
  double missing = 0;        // share of runs that fail
  bool listed = false;       // the runs are in the order of the study file, otherwise in that of ExpandStudy
  // Whether the assumptions of the intervals hold: independent noise, equal in all cells,
  // and order: randomized.
  bool holds = true;
};

// The noise kinds of the coverage table in docs/users/reading-a-curve-statistics.md.
std::vector<Noise> NoiseKinds();

// A figure of that table: the share of intervals that contain the truth, in percent.
struct DocumentedShare {
  const char* noise;
  int cells, n;
  double percent;
};
// Figures of each noise kind for which the assumptions do not hold.
std::vector<DocumentedShare> DocumentedShares();

struct Truth {
  std::vector<int> ranks = {1, 2, 4, 8};
  int engines = 1;
  double serial = 0.05;    // Amdahl's fraction
  double coherency = 0;    // of the USL
  double engine_gain = 0;  // each further engine is faster by this share
  double Throughput(int ranks) const;
};

// Returns a study with its results. Its series have the engines "engine/0", "engine/1", ...
Results Simulate(const Truth& truth, const Noise& noise, int repeats, std::mt19937_64& random);

struct Coverage {
  double covered = 0;     // share of the intervals that contain the truth
  double half_width = 0;  // median, of the logarithm
  double shown = 0;       // share of the studies that have an interval
};

// Returns the coverage of the speedup of the largest world size over the smallest. `cells` is 2, 4 or 12.
Coverage SpeedupCoverage(const Noise& noise, int cells, int repeats, int studies, uint64_t seed);
// Returns the coverage of the parameter of the fit of Amdahl's law on 1 to 16 ranks; if `usl`, of the coherency of the USL or,
// if `contention`, of its contention.
Coverage FitCoverage(double serial, bool usl, const Noise& noise, int repeats, int studies, uint64_t seed,
                     bool contention = false);
// Returns how often a fit is refuted although its law is true: Amdahl's law or, if `usl`, the Universal Scalability Law
// with a coherency above 0.
double FalseRefutations(const Noise& noise, int repeats, int studies, uint64_t seed, bool usl = false);

struct AdaptiveRule {
  int min = 2, max = 10;
  double half_width = 0.02;
};
struct AdaptiveCoverage {
  double covered = 0;        // share of the intervals of the largest speedup that contain the truth
  double blocks = 0;         // mean number of blocks
  double same_decision = 0;  // share of the studies with the advice that all `max` blocks give
};
// Simulates studies that end by the rule, and returns the results.
AdaptiveCoverage AdaptiveStudies(const Truth& truth, const Noise& noise, const AdaptiveRule& rule,
                                 int studies, uint64_t seed);

struct Decisions {
  double right = 0;      // share of the studies whose recommended world size is right
  double undecided = 0;  // share of the other studies that are undecided
  double open = 0;       // share of all studies that are undecided
};
// Advises on simulated studies with 5 repeats. The least gain is 50%.
Decisions AdviceDecisions(const Truth& truth, int studies, uint64_t seed,
                          const Noise& noise = {.name = "", .run = 0.02, .block = 0.03});
// Five true laws. The gain of a doubling falls below 50% at a different world size in each.
std::vector<Truth> AdviceTruths();

struct NearTruth {
  Truth truth;
  Noise noise;  // its name describes the truth, too
};
// True laws for which the gain of the step from 8 to 16 ranks differs from 50% by 1.8 standard errors of its logarithm, above
// and below, at two levels of noise. With 5 repeats, the standard error is the noise of a run x sqrt(2 / 5).
std::vector<NearTruth> AdviceTruthsNearTheLimit();

}  // namespace scalelab::analysis
