// How parameters are grouped into blocks of gradients, after PyTorch's distributed data parallel: Li et al.
// 2020 (arXiv 2006.15704), section 3.2.3, and torch/csrc/distributed/c10d/reducer.cpp.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/trainer/torch.h"

namespace scalelab::trainer {

// A bucket is closed once it holds so many bytes. The first one is small, so that communication starts early.
struct BucketCaps {
  int64_t first_bytes = 1 << 20;
  int64_t bytes = 25 << 20;
};

// 0 to `count` - 1 backwards: about the order in which backward finishes parameters.
std::vector<int> ReverseOrder(size_t count);

// Indices of parameters by bucket, taken in the given order; each bucket has one type.
std::vector<std::vector<int>> AssignBuckets(const std::vector<at::Tensor>& parameters,
                                            const std::vector<int>& order, const BucketCaps& caps);

// One block of memory and, for each of its parameters, a view of it with the parameter's shape and strides.
struct GradientBucket {
  std::vector<int> parameters;
  at::Tensor flat;
  std::vector<at::Tensor> views;
  at::Tensor tail;  // further elements of `flat`, if asked for
  int missing = 0;  // gradients of the running pass that are not there yet
};

// Parameters must be dense. Views start at multiples of 64 bytes.
GradientBucket MakeBucket(const std::vector<at::Tensor>& parameters, const std::vector<int>& indices,
                          int64_t tail_elements);

}  // namespace scalelab::trainer
