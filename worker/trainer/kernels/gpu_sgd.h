// A step of SGD for many tensors on a GPU. One launch handles dozens of them; a launch for each would take longer
// than the step.
#pragma once

#include <cstdint>

#include "worker/trainer/kernels/gpu.h"

namespace scalelab::trainer {

// The arrays of one tensor, in the memory of the GPU. Each has n elements.
struct GpuSgdTensor {
  float* p = nullptr;        // parameters
  float* v = nullptr;        // velocities; unused if the momentum is 0
  const float* g = nullptr;  // gradients
  void* copy = nullptr;      // receives the new parameters, rounded to GpuSgdOptions::copies; null: no copy
  int64_t n = 0;
  float decay = 0;
};

struct GpuSgdOptions {
  float momentum = 0;
  const float* rate = nullptr;  // one number in the memory of the GPU
  // One number in the memory of the GPU. If it is 1, the step changes nothing. If the pointer is null, no
  // step is left out.
  const float* left_out = nullptr;
  GpuNumber copies = GpuNumber::kBFloat16;
};

// Computes v = momentum * v + (g + decay * p); p = p - rate * v, each operation rounded separately, as SgdStep (sgd_kernel.h) does.
// If the momentum is 0, v is g + decay * p, and is not stored.
SCALELAB_HOST_DEVICE inline void GpuSgdElement(float& p, float& v, float g, float momentum, float decay,
                                               float rate) {
  const float gradient = g + decay * p;
  v = momentum == 0 ? gradient : momentum * v + gradient;
  p -= rate * v;
}

// Enqueues the step on the stream. Neither waits for the GPU nor allocates memory, so it can be recorded into a CUDA graph. Throws
// std::runtime_error if the kernel cannot be launched. Defined in builds with CUDA only.
void GpuSgd(const GpuSgdTensor* tensors, int64_t count, const GpuSgdOptions& options, GpuStream stream);

}  // namespace scalelab::trainer
