// What a benchmark says: one figure, and what it is measured against in the same run.
#pragma once

#include <string>
#include <vector>

namespace scalelab::bench {

struct Figure {
  std::string name;  // "ingest/points_1000"
  double value = 0;
  std::string unit;          // "points/s", "ms"
  std::string against;       // what it is compared with; empty when with nothing
  double against_value = 0;  // in the same unit
  double ratio = 0;          // value / against_value; 0 when compared with nothing
  double low = 0, high = 0;  // least and greatest ratio of a round; 0 where one measurement is all there is
};

struct BenchOptions {
  double scale = 1.0;               // of the amounts of data; below 1 for a quick look
  std::string directory;            // where databases are made: on the disk that is to be measured
  int all_reduce_ranks = 2;         // of `allreduce`
  std::vector<std::string> models;  // of `train`; empty: all that it knows
  std::vector<int> ranks = {1, 2};  // of `train`
  int rounds = 0;                   // of `train`; 0: as many as the scale gives
};

}  // namespace scalelab::bench
