// Figures of the database and of curves, without RPC.
#pragma once

#include <vector>

#include "tests/bench/figure.h"

namespace scalelab::bench {

// Measures, in `options.directory` (everything made there is removed):
//   ingest/points_N      Store::Commit of N points a commit, against SQLite inserting the same rows one by
//   one, prepared
//                        and with the same durability, into one table (attempt, key, rank, line, step, time,
//                        value)
//   ingest/chunks_N      the same commits against the same rows inserted raw into the store's own tables
//   submit/study         milliseconds to commit a study of 10,000 runs
//   submit/single        studies of one run a second, 50 a commit
//   complete/runs        run completions a second (run, attempt and summary), 50 a commit
//   curve/study_1000, curve/study_100000
//                        milliseconds from rows to a finished curve, of a study among a million stored runs
//   analysis/curve       milliseconds to make a curve of 100 cells with 100 repeats each
//   points/downsampled   milliseconds to read a series of a million points and choose 2,000
// Milliseconds are medians of several runs.
std::vector<Figure> RunQueryBench(const BenchOptions& options);

}  // namespace scalelab::bench
