// The model "replay" with recorded buckets: simulates the all-reduces of a step for another number of
// ranks. Pure functions.
//
// Backward takes B seconds. Bucket i is ready r_i seconds after backward begins. B and r_i are proportional
// to the computation of a rank. One queue reduces the buckets in order, each over a ring of p ranks (Thakur,
// Rabenseifner and Gropp 2005, section 4.4):
//   end_i = max(end_(i-1), r_i) + 2 (p - 1) alpha + 2 (p - 1) / p bytes_i beta
//   step = w + max(0, end_last - B) + wait
// w is the computation of the slowest rank as in replay.h. alpha and beta are fitted to the all-reduces that
// the study recorded on the network that the ranks use. wait is the exposed communication that the simulation
// does not explain. It is the difference between the measured and the simulated exposed communication of the
// largest measured size. The model multiplies it by the ratio of the computations, and by the ratio of the
// expected maxima of p normal values, where p is the number of ranks.
#pragma once

#include <optional>
#include <vector>

#include "server/prediction/replay.h"

namespace scalelab::server {

// Seconds and bytes of one bucket of gradients in a mean step.
struct RecordedBucket {
  double bytes = 0;
  double ready = 0;   // seconds from the begin of backward until the bucket is ready
  double reduce = 0;  // seconds of its all-reduce; 0: not known
};

struct RecordedStep {
  double backward = 0;  // seconds
  std::vector<RecordedBucket> buckets;
};

// A measured world size whose runs recorded buckets.
struct RecordedSize {
  int ranks = 0;
  MeanStepParts parts;
  std::vector<RecordedStep> steps;  // one for each run; the largest size has one or more
};

// The cost of one message: alpha seconds + beta seconds for each byte.
struct RingCost {
  double alpha = 0, beta = 0;
  double Seconds(int ranks, double bytes) const {
    const double p = ranks;
    return 2 * (p - 1) * alpha + 2 * (p - 1) / p * bytes * beta;
  }
};

// The duration of one all-reduce.
struct AllReduceTime {
  int ranks = 0;
  double bytes = 0, seconds = 0;
};

// Fits alpha and beta by least squares of relative deviations. `times` is not empty; each entry has two
// ranks or more.
RingCost FitRing(const std::vector<AllReduceTime>& times);

// Fits alpha and beta to the recorded all-reduces of two or more ranks. Uses only world sizes on several
// nodes if `ranks` ranks need several nodes, otherwise only world sizes on one node. Returns nothing if
// there are none.
std::optional<RingCost> FitRing(const std::vector<RecordedSize>& measured, int ranks, int ranks_per_node);

// Returns the seconds from the end of backward to the end of the last all-reduce, if backward takes
// `backward` seconds; 0 if the all-reduces end earlier.
double SimulateExposed(const RecordedStep& step, const RingCost& cost, int ranks, double backward);

// Returns the seconds of a step of `ranks` ranks with `batch` samples each. `measured` is sorted by ranks and
// has three sizes or more. `network` is the cost on the network that `ranks` ranks use; without it, FitRing
// estimates the cost from `measured`. Returns nothing if that is not possible, or if the largest size
// recorded no buckets.
std::optional<double> ReplayBuckets(const std::vector<RecordedSize>& measured, int ranks, double batch,
                                    int ranks_per_node, const std::optional<RingCost>& network = {});

}  // namespace scalelab::server
