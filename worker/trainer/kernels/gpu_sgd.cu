#include <algorithm>
#include <cstdint>

#include "worker/trainer/kernels/gpu_launch.cuh"
#include "worker/trainer/kernels/gpu_sgd.h"

namespace scalelab::trainer {
namespace {

constexpr int kThreads = 256, kLanes = 4;
constexpr int64_t kChunk = 4096;  // elements that one block computes
// The greatest number of tensors whose pointers fit into the arguments of one kernel, which may have 4 KB. A
// longer list would have to be copied to the memory of the GPU first.
constexpr int kTensors = 76;

struct Tensors {
  GpuSgdTensor tensors[kTensors];
  int first_chunk[kTensors];  // number of each tensor's first chunk
  int count;
};
static_assert(sizeof(Tensors) + sizeof(GpuSgdOptions) <= 4096);

__device__ void Round(float value, float& to) { to = value; }
__device__ void Round(float value, __half& to) { to = __float2half_rn(value); }
__device__ void Round(float value, __nv_bfloat16& to) { to = __float2bfloat16_rn(value); }

__device__ bool IsAligned(const void* pointer, size_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

// The chunks of all tensors are numbered one after another. Block b computes chunk b.
template <typename Copy>
__global__ void __launch_bounds__(kThreads)
    Step(__grid_constant__ const Tensors all, __grid_constant__ const GpuSgdOptions options) {
  if (options.left_out != nullptr && *options.left_out == 1) return;
  int low = 0, high = all.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (all.first_chunk[middle] <= static_cast<int>(blockIdx.x) ? low : high) = middle;
  }
  const GpuSgdTensor& tensor = all.tensors[low];
  const int64_t begin = (static_cast<int64_t>(blockIdx.x) - all.first_chunk[low]) * kChunk;
  const int64_t end = begin + kChunk < tensor.n ? begin + kChunk : tensor.n;
  const float rate = *options.rate, momentum = options.momentum, decay = tensor.decay;
  const bool moves = momentum != 0;
  float* const p = tensor.p;
  float* const v = tensor.v;
  const float* const g = tensor.g;
  Copy* const copy = static_cast<Copy*>(tensor.copy);

  int64_t rest = begin;
  // A parameter that is a part of a larger tensor may begin anywhere.
  if (IsAligned(p, 16) && IsAligned(g, 16) && (!moves || IsAligned(v, 16)) &&
      (copy == nullptr || IsAligned(copy, kLanes * sizeof(Copy)))) {
    rest = end - end % kLanes;
    for (int64_t i = begin + threadIdx.x * kLanes; i < rest; i += kThreads * kLanes) {
      struct alignas(16) Four {
        float values[kLanes];
      };
      struct alignas(kLanes * sizeof(Copy)) Rounded {
        Copy values[kLanes];
      };
      Four parameters = *reinterpret_cast<const Four*>(p + i), velocities = {};
      const Four gradients = *reinterpret_cast<const Four*>(g + i);
      if (moves) velocities = *reinterpret_cast<const Four*>(v + i);
      Rounded rounded;
#pragma unroll
      for (int k = 0; k < kLanes; ++k) {
        GpuSgdElement(parameters.values[k], velocities.values[k], gradients.values[k], momentum, decay, rate);
        Round(parameters.values[k], rounded.values[k]);
      }
      *reinterpret_cast<Four*>(p + i) = parameters;
      if (moves) *reinterpret_cast<Four*>(v + i) = velocities;
      if (copy != nullptr) *reinterpret_cast<Rounded*>(copy + i) = rounded;
    }
  }
  for (int64_t i = rest + threadIdx.x; i < end; i += kThreads) {
    float parameter = p[i], velocity = moves ? v[i] : 0;
    GpuSgdElement(parameter, velocity, g[i], momentum, decay, rate);
    p[i] = parameter;
    if (moves) v[i] = velocity;
    if (copy != nullptr) Round(parameter, copy[i]);
  }
}

}  // namespace

void GpuSgd(const GpuSgdTensor* tensors, int64_t count, const GpuSgdOptions& options, GpuStream stream) {
  Tensors all;
  for (int64_t first = 0; first < count; first += kTensors) {
    all.count = static_cast<int>(std::min<int64_t>(kTensors, count - first));
    int chunks = 0;
    for (int i = 0; i < all.count; ++i) {
      all.tensors[i] = tensors[first + i];
      all.first_chunk[i] = chunks;
      chunks += static_cast<int>((all.tensors[i].n + kChunk - 1) / kChunk);
    }
    if (chunks == 0) continue;
    WithGpuNumber(options.copies, [&](auto zero) {
      Launch("SGD", Step<decltype(zero)>, static_cast<unsigned>(chunks), kThreads, stream, all, options);
    });
  }
}

}  // namespace scalelab::trainer
