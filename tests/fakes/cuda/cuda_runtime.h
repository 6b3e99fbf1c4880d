// Replaces the headers of CUDA in tests. An ordinary compiler then compiles the kernels, and the CPU executes them: each thread of a
// block is a thread of the process, and blocks take turns. Contains what worker/trainer/kernels/*.cu use.
#pragma once

#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __shared__ static  // one block executes at a time
#define __grid_constant__
#define __launch_bounds__(...)

struct CUstream_st;
using cudaStream_t = CUstream_st*;
using cudaError_t = int;
inline constexpr cudaError_t cudaSuccess = 0;
inline const char* cudaGetErrorString(cudaError_t) { return ""; }

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

inline thread_local dim3 threadIdx, blockIdx;
inline std::barrier<>* threads_of_block = nullptr;
inline void __syncthreads() { threads_of_block->arrive_and_wait(); }

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  cudaStream_t stream = nullptr;
};

// Executes the kernel before it returns.
template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  const dim3 grid = config->gridDim, block = config->blockDim;
  std::barrier<> barrier(block.x * block.y);
  threads_of_block = &barrier;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < block.x * block.y; ++t) {
    threads.emplace_back([&, t] {
      threadIdx = dim3(t % block.x, t / block.x);
      for (unsigned b = 0; b < grid.x * grid.y; ++b) {
        blockIdx = dim3(b % grid.x, b / grid.x);
        kernel(arguments...);
        __syncthreads();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return cudaSuccess;
}
