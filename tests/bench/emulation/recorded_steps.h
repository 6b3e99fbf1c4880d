// Recorded steps of the native trainer, as the computation of emulated studies.
#pragma once

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/bench/emulation/emulated_cluster.h"

namespace scalelab::bench {

// The steps of a model with one batch of a rank.
struct RecordedSteps {
  std::string model;
  int batch = 0;
  std::vector<EmulatedBucket> buckets;
  std::vector<std::pair<double, double>> seconds;  // of forward and of backward, by step
};

// Reads a file of steps. Prints the first error and returns nothing if the file is invalid.
std::vector<RecordedSteps> ReadRecordedSteps(const std::string& file);

// Reads recorded_steps.csv.
std::vector<RecordedSteps> ReadRecordedSteps();

// Replaces the drawn computation and the drawn buckets by those of a random element of `recorded`, which must
// not be empty. Scales the network so that the share of communication stays as drawn. Ranks then differ from
// step to step only as recorded. Every study has 3 repeats.
void UseRecordedSteps(const std::vector<RecordedSteps>& recorded, std::mt19937_64& random,
                      EmulatedConfiguration& configuration);

}  // namespace scalelab::bench
