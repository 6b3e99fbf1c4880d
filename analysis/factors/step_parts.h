// The parts of the mean step of a run, and the factors of a point's efficiency.
//
// A rank computes for w = step - exposed communication - wait for data seconds. The factors are those of the POP project
// (Rosas, Gimenez and Labarta, Supercomputing Frontiers and Innovations 1, 2014), with the wait for data apart:
//   load balance = mean(w) / max(w), data = max(w) / max(w + data), communication = max(w + data) / step,
//   computation = (seconds of all ranks per sample of the base case) / (that of the point).
// docs/users/reading-a-curve-statistics.md has an example.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "analysis/distributions.h"
#include "db/records.h"
#include "scalelab/v1/result.pb.h"

namespace scalelab::analysis {

// Seconds per step of one repeat.
struct StepParts {
  int repeat = 0;
  double step = 0;       // longest mean step of a rank
  double mean_work = 0;  // computation, mean over ranks
  double max_work = 0;   // computation of the slowest rank
  double max_busy = 0;   // longest sum of computation and wait for data
  double exposed = 0;    // exposed communication, mean over ranks
  std::optional<double> comm_total;
  const db::RunTimes* times = nullptr;
};

// Returns the seconds that a rank computes in a step.
double WorkOf(const db::RunTimes::Rank& rank);

// Returns nothing if the ranks have no times, or impossible times.
std::optional<StepParts> PartsOf(const db::RunTimes& times, int repeat);

// The repeats of a cell, by repeat.
struct StepCell {
  int ranks = 0;
  double samples = 0;  // samples of a step over all ranks
  std::vector<StepParts> repeats;
};

// Computes the factors of `point`, except for slowest_rank and slowest_node. `base` may be null. `point` has repeats.
scalelab::v1::ScalingFactors MakeFactors(const StepCell& point, const StepCell* base,
                                         const CriticalValues& critical);

}  // namespace scalelab::analysis
