// Models of scaling, and what they predict for a larger world size. Pure.
//
// Throughput X(p) of p ranks; X0 is that of the smallest measured world size p0. The cost of a sample in rank-seconds is
// c(p) = p / X(p), constant if the scaling is perfect.
//   amdahl         X0 p / p0 D(p0) / D(p) with D(p) = 1 + s (p - 1)                        (Amdahl 1967; fits.h)
//   usl            the same with D(p) = 1 + a (p - 1) + b p (p - 1)                        (Gunther 2007; fits.h)
//   log-log        X is a power of p through the two largest world sizes
//   1/efficiency   c is linear in log2 p through the two largest world sizes
//   extra-p        c = c0 + c1 p^i log2(p)^j with the i and j that predict left-out points best  (Calotoiu et al., SC'13)
//   replay         the times of a step that ranks reported, see replay.h
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

// Returns the prediction of each model for `ranks`. `measured` has at least three world sizes, sorted by ranks. A model whose
// prediction is not above 0 is left out.
std::map<std::string, double> PredictByModels(const std::vector<MeasuredSize>& measured, int ranks);

struct PredictedThroughput {
  double mean = 0;  // geometric mean of the models that extrapolate the last sizes
  double low = 0, high = 0;
  std::map<std::string, double> models;
};
// Returns the envelope of the models except the laws: from the smallest to the largest, each moved outwards by the root of the sum
// of the squares of two shares: `noise`, and 4% for each doubling since the largest measured world size, or 1% with the model
// "replay", whose prediction is `replayed`. The laws are shown, but they describe whole curves: with strong scaling they widen the
// envelope to twice what is needed, and with weak scaling they lie below the truth (`scalelab-bench predict`).
PredictedThroughput PredictThroughput(const std::vector<MeasuredSize>& measured, int ranks, double noise,
                                      std::optional<double> replayed = std::nullopt);

}  // namespace scalelab::server
