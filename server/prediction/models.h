// Models of scaling, and their predictions for a larger world size. Pure functions.
//
// X(p) is the throughput of p ranks, and X0 the throughput of the smallest measured world size p0. The cost
// of a sample in rank-seconds is c(p) = p / X(p). It is constant if the scaling is perfect.
//   amdahl         X0 p / p0 D(p0) / D(p) with D(p) = 1 + s (p - 1)           (Amdahl 1967; fits.h)
//   usl            as amdahl, with D(p) = 1 + a (p - 1) + b p (p - 1)         (Gunther 2007; fits.h)
//   log-log        X is a power of p through the two largest world sizes (after Barnes et al., ICS 2008)
//   1/efficiency   c is linear in log2 p through the two largest world sizes (after Grama et al. 1993)
//   extra-p        c = c0 + c1 p^i log2(p)^j; i and j minimize the error of leave-one-out cross-validation
//                  (Calotoiu et al., SC'13)
//   replay         predicts from the times of a step that ranks reported, see replay.h
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace scalelab::server {

// The measured throughput of a world size.
struct MeasuredSize {
  int ranks = 0;
  double throughput = 0;
};

// Returns the prediction of each model for `ranks`. `measured` has at least three world sizes, sorted by
// ranks. Leaves out models that predict 0 or less.
std::map<std::string, double> PredictByModels(const std::vector<MeasuredSize>& measured, int ranks);

struct PredictedThroughput {
  double mean = 0;  // geometric mean of the models that extrapolate the last sizes
  double low = 0, high = 0;
  std::map<std::string, double> models;
};
// Returns the envelope of the models: from the smallest to the largest prediction, with a relative
// margin of sqrt(noise^2 + growth^2) below and above. growth is 4% for each doubling of ranks since the
// largest measured world size, or 1% if the model "replay" has predicted `replayed`.
//
// The laws amdahl and usl are in the result, but not in the mean and the envelope, because they describe a
// whole curve relative to the smallest size. With them, 99.7% of the envelopes of simulated studies were
// right with strong scaling (wider than necessary) and 79% with weak scaling, where the laws predict too
// little. docs/users/predictions.md#why-the-two-laws-are-left-out compares both.
PredictedThroughput PredictThroughput(const std::vector<MeasuredSize>& measured, int ranks, double noise,
                                      std::optional<double> replayed = std::nullopt);

}  // namespace scalelab::server
