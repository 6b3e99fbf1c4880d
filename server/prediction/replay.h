// The model "replay": a step as computation and a ring of all-reduces, of which computation hides a part. Pure.
//
//   T(p) = w(b) + max(e g, m g - h w(b))
//   w(b) = u + v b                      computation of the slowest rank with b samples
//   g = at(p) / at(last), at(p) = A (p - 1) + B (p - 1) / p
//                                       growth of a ring since the largest measured size: A is due to latency, B to bandwidth
//                                       (Thakur, Rabenseifner and Gropp 2005, section 4.4)
// e and m are the exposed and the whole communication of the largest measured size, m without the wait for slower ranks; h is the
// share of the computation that hides communication. docs/users/predictions.md has the details.
#pragma once

#include <optional>
#include <vector>

namespace scalelab::server {

// What the ranks of a world size reported: means of a step in seconds.
struct StepParts {
  double compute = 0;        // the step without waiting for gradients, of the slowest rank
  double exposed = 0;        // the rest
  double communication = 0;  // in progress, hidden or not
  double batch = 0;          // samples of a rank
};

struct PartsOfSize {
  int ranks = 0;
  StepParts parts;
};

// y = first f + second g for each term (f, g, y).
struct FitTerm {
  double first = 0, second = 0, y = 0;
};
struct FitFactors {
  double first = 0, second = 0;
};
// Fits both factors, at least 0, by least squares of relative deviations.
FitFactors FitNotNegative(const std::vector<FitTerm>& terms);

// Returns the expected largest of `count` normal values, in standard deviations (Blom 1958).
double LargestOf(int count);

// Returns w(b) for `batch`. Returns nothing if a size has no computation.
std::optional<double> ComputeSeconds(const std::vector<PartsOfSize>& measured, double batch,
                                     int ranks_per_node);

// Returns the seconds of a step of `ranks` ranks with `batch` samples each. `measured` is sorted by ranks. `ranks_per_node`: 0 if all
// ranks are on one node. Returns nothing if no measured size communicates over the network, between nodes or within one, that
// `ranks` ranks use.
std::optional<double> ReplayStep(const std::vector<PartsOfSize>& measured, int ranks, double batch,
                                 int ranks_per_node);

}  // namespace scalelab::server
