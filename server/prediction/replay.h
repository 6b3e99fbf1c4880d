// The model "replay": a step is computation and ring all-reduces, and computation hides a part of the
// all-reduces. Pure functions.
//
//   T(p) = w(b) + max(e g, m g - h w(b))
//   w(b) = u + v b                      computation of the slowest rank with b samples
//   g = at(p) / at(last), at(p) = A (p - 1) + B (p - 1) / p
// g is the time of a ring relative to the largest measured size; A is due to latency and B to bandwidth
// (Thakur, Rabenseifner and Gropp 2005, section 4.4). e is the exposed communication of the largest measured
// size. m is its whole communication without the wait for slower ranks. h is the share of the computation
// that hides communication. docs/users/predictions.md has the details.
#pragma once

#include <optional>
#include <vector>

namespace scalelab::server {

// The mean times of a step that the ranks of a world size reported, in seconds.
struct MeanStepParts {
  double compute = 0;        // the step of the slowest rank without waiting for gradients
  double exposed = 0;        // the rest of the step
  double communication = 0;  // time with communication in progress, exposed or hidden
  double batch = 0;          // samples of a rank
};

struct PartsOfSize {
  int ranks = 0;
  MeanStepParts parts;
};

// y = first f + second g for each term (f, g, y).
struct FitTerm {
  double first = 0, second = 0, y = 0;
};
struct FitFactors {
  double first = 0, second = 0;
};
// Fits `first` and `second`, both at least 0, by least squares of relative deviations.
FitFactors FitNotNegative(const std::vector<FitTerm>& terms);

// Returns the expected largest of `count` normal values, in standard deviations (Blom 1958).
double LargestOf(int count);

// Returns w(batch). Returns nothing if the computation of a size is not known.
std::optional<double> ComputeSeconds(const std::vector<PartsOfSize>& measured, double batch,
                                     int ranks_per_node);

// Returns the seconds of a step of `ranks` ranks with `batch` samples each. `measured` is sorted by ranks.
// `ranks_per_node` is 0 if all ranks are on one node. If `ranks` ranks need several nodes, returns nothing
// unless a measured size used several nodes; otherwise returns nothing unless a measured size of two or more
// ranks used one node.
std::optional<double> ReplayStep(const std::vector<PartsOfSize>& measured, int ranks, double batch,
                                 int ranks_per_node);

}  // namespace scalelab::server
