// The model "replay" with recorded buckets: simulates the all-reduces of a step for another number of ranks. Pure.
//
// Bucket i is ready r_i seconds after backward begins, which takes B seconds; both scale with the computation of a rank. One queue
// reduces the buckets in order, each over a ring of p ranks (Thakur, Rabenseifner and Gropp 2005, section 4.4):
//   end_i = max(end_(i-1), r_i) + 2 (p - 1) alpha + 2 (p - 1) / p bytes_i beta,  step = w + max(0, end_last - B) + wait
// w is the computation of the slowest rank as in replay.h. alpha and beta are fitted to the recorded all-reduces of the study on the
// network that the ranks use, and wait is the exposed communication of the largest measured size that the simulation of that size
// does not explain; it grows like the largest of normal values.
#pragma once

#include <optional>
#include <vector>

#include "server/prediction/replay.h"

namespace scalelab::server {

// Seconds and bytes of one bucket of gradients in a mean step.
struct RecordedBucket {
  double bytes = 0;
  double ready = 0;   // after the begin of backward
  double reduce = 0;  // in its all-reduce; 0: not known
};

struct RecordedStep {
  double backward = 0;  // seconds
  std::vector<RecordedBucket> buckets;
};

// A measured world size whose runs recorded buckets.
struct RecordedSize {
  int ranks = 0;
  StepParts parts;
  std::vector<RecordedStep> steps;  // of its runs; the largest size has one or more
};

// The cost of one message: alpha seconds + beta seconds for each byte.
struct RingCost {
  double alpha = 0, beta = 0;
  double Seconds(int ranks, double bytes) const {
    const double p = ranks;
    return 2 * (p - 1) * alpha + 2 * (p - 1) / p * bytes * beta;
  }
};

// How long one all-reduce took.
struct AllReduceTime {
  int ranks = 0;
  double bytes = 0, seconds = 0;
};

// Fits both by least squares of relative deviations. `times` is not empty; each has two ranks or more.
RingCost FitRing(const std::vector<AllReduceTime>& times);

// Fits both to the all-reduces of the sizes of two or more ranks that are, or are not, on several nodes like `ranks`. Returns nothing if
// there are none.
std::optional<RingCost> FitRing(const std::vector<RecordedSize>& measured, int ranks, int ranks_per_node);

// Returns the seconds by which the all-reduces of a step outlast backward, if backward takes `backward` seconds.
double SimulateExposed(const RecordedStep& step, const RingCost& cost, int ranks, double backward);

// Returns the seconds of a step of `ranks` ranks with `batch` samples each. `measured` is sorted by ranks, with three sizes or more.
// `network` is the cost on the network that `ranks` ranks use; without it, FitRing's of `measured`. Returns nothing if the network is
// not known, or if the largest size recorded no buckets.
std::optional<double> ReplayBuckets(const std::vector<RecordedSize>& measured, int ranks, double batch,
                                    int ranks_per_node, const std::optional<RingCost>& network = {});

}  // namespace scalelab::server
