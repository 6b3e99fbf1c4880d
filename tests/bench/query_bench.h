// Figures of reading: rows to curves, long series to short ones; without RPC.
#pragma once

#include <vector>

#include "tests/bench/figure.h"

namespace scalelab::bench {

// Measures, in `options.directory` (everything made there is removed), medians of several runs in
// milliseconds:
//   curve/study_of_1000_runs, curve/study_of_100000_runs
//                             from rows to a finished curve, of a study among a million stored runs
//   curve/analysis_of_100_cells  a curve of 100 cells with 100 repeats each, rows at hand
//   points/million_downsampled   to read a series of a million points and choose 2,000
std::vector<Figure> RunQueryBench(const BenchOptions& options);

}  // namespace scalelab::bench
