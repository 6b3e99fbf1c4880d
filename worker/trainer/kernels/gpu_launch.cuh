// What the .cu files share: types of numbers, and launches.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "worker/trainer/kernels/gpu.h"

namespace scalelab::trainer {

// Calls body with a 0 of the type.
template <typename Body>
void WithGpuNumber(GpuNumber type, const Body& body) {
  switch (type) {
    case GpuNumber::kFloat:
      return body(float{});
    case GpuNumber::kHalf:
      return body(__half{});
    case GpuNumber::kBFloat16:
      return body(__nv_bfloat16{});
  }
}

// Enqueues a kernel. Throws std::runtime_error, which names the kernel as `what`, if it cannot be launched.
template <typename... Parameters, typename... Arguments>
void Launch(const char* what, void (*kernel)(Parameters...), dim3 blocks, dim3 threads, GpuStream stream,
            const Arguments&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.stream = stream;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, arguments...);
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string("the GPU cannot execute the kernel for ") + what + ": " +
                           cudaGetErrorString(error));
}

}  // namespace scalelab::trainer
