// Groups parameters into buckets of gradients like PyTorch's distributed data parallel (Li et al. 2020, arXiv
// 2006.15704, section 3.2.3, and torch/csrc/distributed/c10d/reducer.cpp).
#pragma once

#include <cstdint>
#include <vector>

#include "worker/trainer/torch.h"

namespace scalelab::trainer {

// A bucket is closed once it holds this many bytes. The first bucket is small, so that
// communication starts early.
struct BucketCaps {
  int64_t first_bytes = 1 << 20;
  int64_t bytes = 25 << 20;
};

// Returns `count` - 1 down to 0, which is roughly the order in which backward computes gradients.
std::vector<int> ReverseOrder(size_t count);

// Assigns parameters to buckets in the given order. Returns the indices of the parameters of each bucket. All
// parameters of a bucket have the same element type.
std::vector<std::vector<int>> AssignBuckets(const std::vector<at::Tensor>& parameters,
                                            const std::vector<int>& order, const BucketCaps& caps);

// The positions of parameters in one block of memory. Each begins at a multiple of 64 bytes, which
// is `align` elements.
struct BlockLayout {
  std::vector<int64_t> offsets;  // in elements
  int64_t elements = 0, align = 1;
};
// Lays out parameters in one block. They must be dense and have the same element type.
BlockLayout LayOut(const std::vector<at::Tensor>& parameters, const std::vector<int>& indices);

// One block of memory, with a view for each parameter that has the parameter's shape and strides.
struct GradientBucket {
  std::vector<int> parameters;
  at::Tensor flat;
  std::vector<at::Tensor> views;
  at::Tensor tail;  // the last elements of `flat`, which belong to no parameter
  int missing = 0;  // number of gradients of the current pass that have not arrived
};

// Makes a bucket of zeros, whose tail has `tail_elements` elements.
GradientBucket MakeBucket(const std::vector<at::Tensor>& parameters, const std::vector<int>& indices,
                          int64_t tail_elements);

}  // namespace scalelab::trainer
