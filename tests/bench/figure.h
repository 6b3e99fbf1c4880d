// The result of a benchmark: one figure, and the value that it is compared with in the same run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace scalelab::bench {

struct Figure {
  std::string name;  // "ingest/points_1000"
  double value = 0;
  std::string unit;          // "points/s", "ms"
  std::string against = {};  // what it is compared with; empty for nothing
  double against_value = 0;  // in the same unit
  double ratio = 0;          // value / against_value; 0 without a comparison
  double low = 0, high = 0;  // smallest and largest ratio of a round; 0 if there is only one measurement
};

struct BenchOptions {
  // Factor for the amount of data; less than 1 gives a fast, less precise result.
  double scale = 1.0;
  std::string directory;            // directory for databases, which selects the measured disk
  int all_reduce_ranks = 2;         // for `allreduce`
  std::vector<std::string> models;  // for `train`; empty: all models
  std::vector<int> ranks = {1, 2};  // for `train`
  int rounds = 0;                   // for `train`; 0: the number follows from the scale
  int viewers = 200;                // for `viewers`
  uint64_t seed = 0;                // for `predict`; 0: the seed of the tables in docs
  std::vector<std::string> cases;   // for `memory`; empty: all cases
  bool real_time = false;           // for `predict`: emulate in real time
  std::string record;               // for `predict`: the file that recorded steps are written to; empty: none
};

// Returns the median; for an even number of values, the larger of the middle two. `values` must not be empty.
inline double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace scalelab::bench
