// Fits scalability laws to speedups.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "scalelab/v1/result.pb.h"
#include "server/analysis/bootstrap.h"

namespace scalelab::server {

// Parameters of a least squares fit to speedups. They are not negative.
struct AmdahlFit {
  double serial_fraction = 0;  // 0 to 1
};
struct UslFit {
  double contention = 0, coherency = 0;
};

// Fit a law to `speedups[i]` at `ranks[i]`. The speedups are relative to `base_ranks`, so the law is divided
// by its value at base_ranks, which is 1 for one rank.
AmdahlFit FitAmdahl(const std::vector<double>& ranks, const std::vector<double>& speedups, double base_ranks);
UslFit FitUsl(const std::vector<double>& ranks, const std::vector<double>& speedups, double base_ranks);

// Returns the fits with intervals: Amdahl's law with at least 3 distinct numbers of ranks, the USL with at
// least 4. Speedups are relative to points[base]; no sample is empty. means[i] are the RelativeMeans of
// points[i], or empty if they are not resampled.
//
// The intervals use the same draws of blocks as those of the ratios, with one Gauss-Newton step from the fit
// for each draw (the one-step bootstrap: Shao and Tu, The Jackknife and Bootstrap, 1995), and are widened in
// the same way. With fewer than eight blocks they are Student's t with the jackknife's deviation over blocks
// (Efron and Tibshirani 1993, chapter 11).
std::vector<scalelab::v1::ScalingFit> FitLaws(const std::vector<double>& ranks,
                                              const std::vector<const Sample*>& points,
                                              const std::vector<std::vector<float>>& means, size_t base,
                                              const BlockBootstrap& bootstrap);

}  // namespace scalelab::server
