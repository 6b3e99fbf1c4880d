// Computes how many attempts ran at the same time as each run of a curve. The functions are pure.
#pragma once

#include <vector>

#include "db/records.h"

namespace scalelab::analysis {

// The number of attempts of the service that ran at the same time as a run, itself included.
struct Concurrency {
  double mean = 1;  // mean over the time of the run
  int most = 1;
};

// Returns the concurrency of each row: 1 for a row without results. `attempts` has the times of all attempts that may
// overlap with the rows, those of the rows included, in any order.
std::vector<Concurrency> FindConcurrency(const std::vector<db::AttemptTime>& attempts,
                                         const std::vector<db::CurveRow>& rows);

}  // namespace scalelab::analysis
