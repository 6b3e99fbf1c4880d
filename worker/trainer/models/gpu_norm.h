// FusedNorm (fused_norm.h) on a GPU, by the kernels of kernels/gpu_norm.h.
#pragma once

#include "worker/trainer/kernels/gpu_norm.h"
#include "worker/trainer/models/fused_norm.h"
#include "worker/trainer/torch.h"

namespace scalelab::trainer {

// The kernels that GpuNorm calls. A test on a CPU passes functions for the CPU with the same arithmetic.
struct GpuNormKernels {
  void (*forward)(const GpuNormForwardArrays& arrays, GpuStream stream);
  void (*backward)(const GpuNormBackwardArrays& arrays, GpuStream stream);
};

// Returns whether the kernels support the type, layout and shape of `x`: float32, float16 or bfloat16, channels last, channels a
// multiple of 8.
bool GpuNormSupports(const at::Tensor& x);

// Does the same as FusedNorm. GpuNormSupports(x) must be true; the state must have float32 tensors. A
// residual of another type is converted to that of `x`. Autograd keeps x and one bit for each output, but not
// the output. `kernels` must outlive the gradient.
at::Tensor GpuNorm(const at::Tensor& x, const at::Tensor& residual, const NormState& state,
                   bool batch_statistics, bool relu, const GpuNormKernels& kernels);

}  // namespace scalelab::trainer
