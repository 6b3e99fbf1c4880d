// Definitions that all GPU kernels use. With them, the kernels can be declared and called
// without CUDA's headers.
#pragma once

// Functions with the arithmetic of a kernel are compiled for the GPU by nvcc and for the CPU by every compiler. Tests therefore
// execute the same arithmetic without a GPU.
#ifdef __CUDACC__
#define SCALELAB_HOST_DEVICE __host__ __device__
#else
#define SCALELAB_HOST_DEVICE
#endif

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace scalelab::trainer {

using GpuStream = CUstream_st*;

// The type of the numbers in an array.
enum class GpuNumber { kFloat, kHalf, kBFloat16 };

}  // namespace scalelab::trainer
