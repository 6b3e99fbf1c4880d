// How parameters are grouped into blocks of gradients, after PyTorch's distributed data parallel: Li et al.
// 2020 (arXiv 2006.15704), section 3.2.3, and torch/csrc/distributed/c10d/reducer.cpp.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/trainer/torch.h"

namespace scalelab::trainer {

// The first bucket is small, so that communication starts early.
inline constexpr int64_t kFirstBucketBytes = 1 << 20;

// Indices of parameters by bucket. Parameters are taken in reverse order, which is about the order in which
// backward finishes them; a bucket is closed once it holds at least its cap (kFirstBucketBytes, then
// `cap_bytes`); each bucket has one type.
std::vector<std::vector<int>> AssignBuckets(const std::vector<at::Tensor>& parameters, int64_t cap_bytes);

// One block of memory and, for each of its parameters, a view of it with the parameter's shape and strides.
struct GradientBucket {
  std::vector<int> parameters;
  at::Tensor flat;
  std::vector<at::Tensor> views;
  int missing = 0;  // gradients of the running pass that are not there yet
};

// Parameters must be dense. Views start at multiples of 64 bytes.
GradientBucket MakeBucket(const std::vector<at::Tensor>& parameters, const std::vector<int>& indices);

}  // namespace scalelab::trainer
