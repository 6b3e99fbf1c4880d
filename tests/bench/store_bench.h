// Benchmarks of the database alone, without RPC.
#pragma once

#include <vector>

#include "tests/bench/figure.h"

namespace scalelab::bench {

// Measures, in `options.directory`, and removes everything it creates there:
//   store/points_N               Store::Commit of N points per commit, compared with SQLite inserting the
//                                same rows one by one, prepared and equally durable, into one table
//                                (attempt, key, rank, line, step, time, value)
//   store/chunks_N               the same commits, compared with the same points inserted directly as plain arrays
//                                of times and values, a row a metric
//   store/study_of_10000_runs    milliseconds to commit it
//   store/list_large_studies     milliseconds to list ten studies of 100,000 runs and count their runs
//   store/single_studies         studies of one run per second, 50 per commit
//   store/completions            run completions per second (run, attempt and summary), 50 per commit
std::vector<Figure> RunStoreBench(const BenchOptions& options);

// Measures retention on a database of ten million points, half of which are old: the time, the size before and after, and
// reads and commits meanwhile.
std::vector<Figure> RunPruneBench(const BenchOptions& options);

}  // namespace scalelab::bench
