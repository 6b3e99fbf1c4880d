// Largest triangle three buckets (S. Steinarsson, "Downsampling Time Series for Visual Representation", 2013).
#pragma once

#include <cstddef>
#include <vector>

namespace scalelab::server {

// Indices of at most `count` points of (x, y) that keep the shape: first and last always, in order. All of them when
// there are no more than `count`. NaN values are treated as equal to their neighbour. `count` below 3 counts as 3.
std::vector<size_t> Downsample(const std::vector<double>& x, const std::vector<double>& y, size_t count);

}  // namespace scalelab::server
