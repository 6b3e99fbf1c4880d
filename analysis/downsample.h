// Downsampling with largest triangle three buckets (S. Steinarsson, "Downsampling Time Series for
// Visual Representation", 2013).
#pragma once

#include <cstddef>
#include <vector>

namespace scalelab::analysis {

// Returns the ascending indices of at most `count` points of (x, y) that keep the shape of the curve. They
// include the last point, and the first point if `count` is at least 2. A NaN counts as the value before it.
std::vector<size_t> Downsample(const std::vector<double>& x, const std::vector<double>& y, size_t count);

}  // namespace scalelab::analysis
