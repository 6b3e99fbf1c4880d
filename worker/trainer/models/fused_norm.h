// Batch normalization, addition and rectification as one operation with its own gradient.
#pragma once

#include "worker/trainer/torch.h"

namespace scalelab::trainer {

struct NormState {
  at::Tensor weight, bias, running_mean, running_var;
  double momentum = 0.1, epsilon = 1e-5;
};

// Returns whether FusedNorm supports `x`, which must have the channels last: float32 on the CPU with channels a multiple of 16, or
// float32, float16 or bfloat16 on a GPU of compute capability 8.0 or later with channels a multiple of 8.
bool CanFuseNorm(const at::Tensor& x);

// Returns norm(x), plus `residual` if it is defined (same shape), rectified if `relu`. With
// `batch_statistics`, normalizes by the mean and variance of this batch and updates the running statistics;
// otherwise normalizes by the running statistics. Sums are computed in double precision, on a GPU in single precision.
at::Tensor FusedNorm(const at::Tensor& x, const at::Tensor& residual, const NormState& state,
                     bool batch_statistics, bool relu);

}  // namespace scalelab::trainer
