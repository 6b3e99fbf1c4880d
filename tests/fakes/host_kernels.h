// The trainer's kernels for GPUs (worker/trainer/kernels/gpu_*.h) as loops on the CPU, with the same arithmetic. Norms merge their
// sums in the same order.
#pragma once

#include "worker/trainer/kernels/gpu_images.h"
#include "worker/trainer/kernels/gpu_norm.h"
#include "worker/trainer/kernels/gpu_sgd.h"

namespace scalelab::trainer {

// The arrays are in host memory; the stream is unused.
void HostNormForward(const GpuNormForwardArrays& arrays, GpuStream stream);
void HostNormBackward(const GpuNormBackwardArrays& arrays, GpuStream stream);
void HostSgd(const GpuSgdTensor* tensors, int64_t count, const GpuSgdOptions& options, GpuStream stream);
void HostImages(const GpuImageArrays& arrays, GpuStream stream);

}  // namespace scalelab::trainer
