#include "worker/trainer/kernels/gpu_images.h"
#include "worker/trainer/kernels/gpu_launch.cuh"

namespace scalelab::trainer {
namespace {

constexpr int kThreads = 256, kChannels = 3;

// Each thread computes one pixel.
template <typename T>
__global__ void __launch_bounds__(kThreads) Convert(__grid_constant__ const GpuImageArrays arrays) {
  const int plane = arrays.side * arrays.side;
  const int pixel = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (pixel >= plane) return;
  const int64_t image = blockIdx.y;
  const GpuCrop crop = arrays.crops == nullptr ? GpuCrop{} : arrays.crops[image];
  const int source = GpuSourcePixel(crop, arrays.side, pixel / arrays.side, pixel % arrays.side);
  const uint8_t* const bytes = arrays.bytes + image * kChannels * plane;
  T* const out = static_cast<T*>(arrays.out) + image * kChannels * plane;
#pragma unroll
  for (int c = 0; c < kChannels; ++c) {
    const int from = arrays.interleaved ? source * kChannels + c : c * plane + source;
    const int to = arrays.channels_last ? pixel * kChannels + c : c * plane + pixel;
    out[to] = source < 0 ? T(0.0f) : T(GpuNormalizedByte(bytes[from], arrays.mean[c], arrays.deviation[c]));
  }
}

}  // namespace

void GpuImages(const GpuImageArrays& arrays, GpuStream stream) {
  constexpr int64_t kMost = 65'535;  // blocks along y
  const int plane = arrays.side * arrays.side;
  for (int64_t first = 0; first < arrays.count; first += kMost) {
    const int64_t count = arrays.count - first < kMost ? arrays.count - first : kMost;
    WithGpuNumber(arrays.type, [&](auto zero) {
      using T = decltype(zero);
      GpuImageArrays part = arrays;
      part.bytes += first * kChannels * plane;
      if (part.crops != nullptr) part.crops += first;
      part.out = static_cast<T*>(part.out) + first * kChannels * plane;
      const dim3 blocks(static_cast<unsigned>((plane + kThreads - 1) / kThreads),
                        static_cast<unsigned>(count));
      Launch("images", Convert<T>, blocks, kThreads, stream, part);
    });
  }
}

}  // namespace scalelab::trainer
