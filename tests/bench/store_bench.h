// Figures of the database alone, without RPC.
#pragma once

#include <vector>

#include "tests/bench/figure.h"

namespace scalelab::bench {

// Measures, in `options.directory` (everything made there is removed):
//   store/points_N             Store::Commit of N points a commit, against SQLite inserting the same rows one
//   by one,
//                              prepared and as durably, into one table (attempt, key, rank, line, step, time,
//                              value)
//   store/chunks_N             the same commits against the same rows inserted raw into the store's own
//   tables store/study_of_10000_runs  milliseconds to commit it store/single_studies       studies of one run
//   a second, 50 a commit store/completions          run completions a second (run, attempt and summary), 50
//   a commit
std::vector<Figure> RunStoreBench(const BenchOptions& options);

}  // namespace scalelab::bench
