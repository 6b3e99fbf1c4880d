// Laws of scalability fitted to speedups.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "scalelab/v1/result.pb.h"
#include "server/analysis/bootstrap.h"

namespace scalelab::server {

// Least squares over measured speedups, parameters not negative.
struct AmdahlFit {
  double serial_fraction = 0;  // 0 to 1
};
struct UslFit {
  double contention = 0, coherency = 0;
};

// `speedups[i]` at `ranks[i]` are relative to `base_ranks`: the laws are divided by their own value there,
// which is 1 where base_ranks is 1.
AmdahlFit FitAmdahl(const std::vector<double>& ranks, const std::vector<double>& speedups, double base_ranks);
UslFit FitUsl(const std::vector<double>& ranks, const std::vector<double>& speedups, double base_ranks);

// Both laws with intervals, where there are points enough: Amdahl's from 3 distinct ranks, USL from 4.
// points[base] is what speedups are relative to; all samples have values. means[i] are RelativeMeans of
// points[i], or empty where they are not resampled.
//
// Intervals come from the same draws of blocks as those of the ratios, by one Gauss-Newton step from the fit
// for each (the one-step bootstrap: Shao and Tu, The Jackknife and Bootstrap, 1995), widened in the same way.
// With fewer than eight blocks they are Student's t on the jackknife's deviation over blocks (Efron and
// Tibshirani 1993, chapter 11).
std::vector<scalelab::v1::ScalingFit> FitLaws(const std::vector<double>& ranks,
                                              const std::vector<const Sample*>& points,
                                              const std::vector<std::vector<float>>& means, size_t base,
                                              const BlockBootstrap& bootstrap);

}  // namespace scalelab::server
