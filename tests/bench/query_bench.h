// Benchmarks of reading without RPC: computing curves, comparisons and advice from rows, and downsampling long series.
#pragma once

#include <vector>

#include "tests/bench/figure.h"

namespace scalelab::bench {

// Measures medians of several runs in milliseconds, in `options.directory`, and removes everything
// it creates there:
//   curve/study_of_1000_runs, curve/study_of_100000_runs
//                                from rows to a finished curve, for a study among a million stored runs
//   curve/first_of_100000_runs   the same without rows in memory: the first curve after the store was opened
//   curve/factors_of_100000_runs the same as study_of_100000_runs, with factors
//   curve/comparison_of_100000_runs
//                                the response of `scalelab curve --compare engine` for the same study: 4,950 pairs of its
//                                100 engines at each of 10 world sizes, and the notes of its curve
//   curve/advice_of_100000_runs  the response of `scalelab advise` for the same study
//   curve/analysis_of_100_cells  a curve of 100 cells with 100 repeats each, with rows in memory
//   points/million_downsampled   reads a series of a million points and chooses 2,000
std::vector<Figure> RunQueryBench(const BenchOptions& options);

}  // namespace scalelab::bench
