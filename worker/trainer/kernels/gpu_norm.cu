#include <cstring>

#include "worker/trainer/kernels/gpu_launch.cuh"
#include "worker/trainer/kernels/gpu_norm.h"
#include "worker/trainer/kernels/gpu_norm_math.h"

namespace scalelab::trainer {
namespace {

constexpr int kGroup = kGpuNormGroup;
constexpr int kSide = 32;  // the kernels that merge parts have kSide x kSide threads in a block

// Load and store the numbers of a group.
__device__ void Load(const float* from, float (&to)[kGroup]) {
  float4 raw[2];
  raw[0] = reinterpret_cast<const float4*>(from)[0];
  raw[1] = reinterpret_cast<const float4*>(from)[1];
  memcpy(to, raw, sizeof(raw));
}

__device__ void Store(const float (&from)[kGroup], float* to) {
  float4 raw[2];
  memcpy(raw, from, sizeof(raw));
  reinterpret_cast<float4*>(to)[0] = raw[0];
  reinterpret_cast<float4*>(to)[1] = raw[1];
}

__device__ float2 ToFloats(__half2 pair) { return __half22float2(pair); }
__device__ float2 ToFloats(__nv_bfloat162 pair) { return __bfloat1622float2(pair); }
__device__ void FromFloats(float a, float b, __half2& pair) { pair = __floats2half2_rn(a, b); }
__device__ void FromFloats(float a, float b, __nv_bfloat162& pair) { pair = __floats2bfloat162_rn(a, b); }

template <typename Pair>
__device__ void LoadPairs(const void* from, float (&to)[kGroup]) {
  const uint4 raw = *static_cast<const uint4*>(from);
  Pair pairs[kGroup / 2];
  memcpy(pairs, &raw, sizeof(raw));
#pragma unroll
  for (int i = 0; i < kGroup / 2; ++i) {
    const float2 both = ToFloats(pairs[i]);
    to[2 * i] = both.x;
    to[2 * i + 1] = both.y;
  }
}

template <typename Pair>
__device__ void StorePairs(const float (&from)[kGroup], void* to) {
  Pair pairs[kGroup / 2];
#pragma unroll
  for (int i = 0; i < kGroup / 2; ++i) FromFloats(from[2 * i], from[2 * i + 1], pairs[i]);
  uint4 raw;
  memcpy(&raw, pairs, sizeof(raw));
  *static_cast<uint4*>(to) = raw;
}

__device__ void Load(const __half* from, float (&to)[kGroup]) { LoadPairs<__half2>(from, to); }
__device__ void Load(const __nv_bfloat16* from, float (&to)[kGroup]) { LoadPairs<__nv_bfloat162>(from, to); }
__device__ void Store(const float (&from)[kGroup], __half* to) { StorePairs<__half2>(from, to); }
__device__ void Store(const float (&from)[kGroup], __nv_bfloat16* to) {
  StorePairs<__nv_bfloat162>(from, to);
}

// The rows and channels of the calling thread.
struct Place {
  int64_t channel, first, last;  // first: the thread's first row; last: end of the part
  int lane, line;
  bool used;  // false if `channel` is beyond the last channel

  __device__ Place(const GpuNormGrid& grid, int64_t rows, int64_t channels)
      : lane(static_cast<int>(threadIdx.x) % grid.width), line(static_cast<int>(threadIdx.x) / grid.width) {
    channel = (static_cast<int64_t>(blockIdx.x) * grid.width + lane) * kGroup;
    used = channel < channels;
    const int part = static_cast<int>(blockIdx.y);
    first = grid.FirstRow(rows, part) + line;
    last = used ? grid.FirstRow(rows, part + 1) : 0;
  }
};

// Merges the sums of all lines of a block into those of line 0. All threads of the block must call it.
template <typename Merge>
__device__ void MergeLines(const GpuNormGrid& grid, const Place& place, GpuNormSums (&sums)[kGroup]) {
  constexpr int kHalf = kGpuNormThreads / 2;
  __shared__ float count[kHalf], first[kGroup][kHalf], second[kGroup][kHalf];
  for (int half = grid.lines / 2; half > 0; half /= 2) {
    if (place.line >= half && place.line < 2 * half) {
      const int at = (place.line - half) * grid.width + place.lane;
      count[at] = sums[0].count;  // the same for all channels
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        first[i][at] = sums[i].first;
        second[i][at] = sums[i].second;
      }
    }
    __syncthreads();
    if (place.line < half) {
      const int at = place.line * grid.width + place.lane;
#pragma unroll
      for (int i = 0; i < kGroup; ++i) sums[i] = Merge()(sums[i], {count[at], first[i][at], second[i][at]});
    }
    __syncthreads();
  }
}

// Writes the sums of a part. The workspace has arrays of parts x channels: the first sums, then the second ones.
__device__ void StorePart(const GpuNormGrid& grid, const Place& place, int64_t channels,
                          const GpuNormSums (&sums)[kGroup], float* workspace) {
  if (place.line != 0 || !place.used) return;
  float first[kGroup], second[kGroup];
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    first[i] = sums[i].first;
    second[i] = sums[i].second;
  }
  const int64_t at = blockIdx.y * channels + place.channel;
  Store(first, workspace + at);
  Store(second, workspace + grid.parts * channels + at);
}

template <typename T>
__global__ void __launch_bounds__(kGpuNormThreads, 2)
    SumInput(GpuNormForwardArrays arrays, GpuNormGrid grid) {
  const int64_t channels = arrays.channels;
  const Place place(grid, arrays.rows, channels);
  const T* __restrict__ x = static_cast<const T*>(arrays.x);
  GpuNormShiftedSums shifted[kGroup];
  float count = 0;
  if (place.first < place.last) {
    float values[kGroup];
    Load(x + place.first * channels + place.channel, values);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) shifted[i].shift = values[i];
#pragma unroll 4
    for (int64_t row = place.first; row < place.last; row += grid.lines) {
      Load(x + row * channels + place.channel, values);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) shifted[i].Add(values[i]);
      ++count;
    }
  }
  GpuNormSums sums[kGroup];
#pragma unroll
  for (int i = 0; i < kGroup; ++i) sums[i] = shifted[i].Moments(count);
  MergeLines<GpuNormMergeMoments>(grid, place, sums);
  StorePart(grid, place, channels, sums, arrays.workspace);
}

// Returns the sums of all parts for the channel of the calling thread, on the threads with threadIdx.y 0. All threads of a block of
// kSide x kSide must call it.
template <typename Merge>
__device__ GpuNormSums MergeParts(const GpuNormGrid& grid, int64_t rows, int64_t channels, int64_t channel,
                                  const float* workspace) {
  __shared__ float counts[kSide][kSide], firsts[kSide][kSide], seconds[kSide][kSide];
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  GpuNormSums sums;
  if (channel < channels) {
    for (int part = y; part < grid.parts; part += kSide) {
      const int64_t at = part * channels + channel;
      const auto count = static_cast<float>(grid.FirstRow(rows, part + 1) - grid.FirstRow(rows, part));
      sums = Merge()(sums, {count, workspace[at], workspace[grid.parts * channels + at]});
    }
  }
  for (int half = kSide / 2; half > 0; half /= 2) {
    if (y >= half && y < 2 * half) {
      counts[y][x] = sums.count;
      firsts[y][x] = sums.first;
      seconds[y][x] = sums.second;
    }
    __syncthreads();
    if (y < half) sums = Merge()(sums, {counts[y + half][x], firsts[y + half][x], seconds[y + half][x]});
  }
  return sums;
}

__global__ void __launch_bounds__(kSide* kSide) FinishForward(GpuNormForwardArrays arrays, GpuNormGrid grid) {
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * kSide + threadIdx.x;
  GpuNormSums all;
  if (arrays.batch_statistics) {
    all = MergeParts<GpuNormMergeMoments>(grid, arrays.rows, arrays.channels, channel, arrays.workspace);
  }
  if (threadIdx.y != 0 || channel >= arrays.channels) return;
  float &mean = arrays.running_mean[channel], &variance = arrays.running_var[channel];
  arrays.inverse[channel] = arrays.batch_statistics
                                ? GpuNormFinishMoments(all, arrays.momentum, arrays.epsilon, mean, variance)
                                : GpuNormInverse(variance, arrays.epsilon);
  arrays.mean[channel] = arrays.batch_statistics ? all.first : mean;
}

template <typename T>
__global__ void __launch_bounds__(kGpuNormThreads, 2)
    ApplyForward(GpuNormForwardArrays arrays, GpuNormGrid grid) {
  const Place place(grid, arrays.rows, arrays.channels);
  if (place.first >= place.last) return;
  const T* __restrict__ x = static_cast<const T*>(arrays.x);
  const T* __restrict__ residual = static_cast<const T*>(arrays.residual);
  T* __restrict__ y = static_cast<T*>(arrays.y);
  uint8_t* __restrict__ positive = arrays.positive;
  float mean[kGroup], scale[kGroup], bias[kGroup];
  Load(arrays.mean + place.channel, mean);
#pragma unroll
  for (int i = 0; i < kGroup; ++i) {
    scale[i] = arrays.weight[place.channel + i] * arrays.inverse[place.channel + i];
    bias[i] = arrays.bias[place.channel + i];
  }
#pragma unroll 2
  for (int64_t row = place.first; row < place.last; row += grid.lines) {
    const int64_t at = row * arrays.channels + place.channel;
    float values[kGroup], others[kGroup] = {};
    Load(x + at, values);
    if (residual != nullptr) Load(residual + at, others);
    unsigned bits = 0;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const float z = GpuNormApply(values[i], mean[i], scale[i], bias[i], others[i]);
      bits |= (GpuNormIsPositive(z) ? 1u : 0u) << i;
      values[i] = arrays.relu ? GpuNormRectify(z) : z;
    }
    Store(values, y + at);
    if (positive != nullptr) positive[at / kGroup] = static_cast<uint8_t>(bits);
  }
}

// Reads the gradients of a group, and sets those of rectified outputs to 0.
template <typename T>
__device__ void LoadGradients(const T* dy, const uint8_t* positive, int64_t at, float (&dz)[kGroup]) {
  Load(dy + at, dz);
  if (positive == nullptr) return;
  const unsigned bits = positive[at / kGroup];
#pragma unroll
  for (int i = 0; i < kGroup; ++i) dz[i] = (bits >> i & 1) != 0 ? dz[i] : 0;
}

template <typename T>
__global__ void __launch_bounds__(kGpuNormThreads, 2)
    SumGradients(GpuNormBackwardArrays arrays, GpuNormGrid grid) {
  const Place place(grid, arrays.rows, arrays.channels);
  const T* __restrict__ x = static_cast<const T*>(arrays.x);
  const T* __restrict__ dy = static_cast<const T*>(arrays.dy);
  const uint8_t* __restrict__ positive = arrays.positive;
  GpuNormSums sums[kGroup];
  if (place.first < place.last) {
    float mean[kGroup];
    Load(arrays.mean + place.channel, mean);
#pragma unroll 2
    for (int64_t row = place.first; row < place.last; row += grid.lines) {
      const int64_t at = row * arrays.channels + place.channel;
      float values[kGroup], dz[kGroup];
      Load(x + at, values);
      LoadGradients(dy, positive, at, dz);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) GpuNormAddGradient(sums[i], dz[i], values[i], mean[i]);
    }
  }
  MergeLines<GpuNormAddSums>(grid, place, sums);
  StorePart(grid, place, arrays.channels, sums, arrays.workspace);
}

// The slopes of all channels follow the sums of the parts in the workspace: a, then b, then c.
__device__ float* Slopes(const GpuNormBackwardArrays& arrays, const GpuNormGrid& grid) {
  return arrays.workspace + 2 * grid.parts * arrays.channels;
}

__global__ void __launch_bounds__(kSide* kSide)
    FinishBackward(GpuNormBackwardArrays arrays, GpuNormGrid grid) {
  const int64_t channel = static_cast<int64_t>(blockIdx.x) * kSide + threadIdx.x;
  const GpuNormSums all =
      MergeParts<GpuNormAddSums>(grid, arrays.rows, arrays.channels, channel, arrays.workspace);
  if (threadIdx.y != 0 || channel >= arrays.channels) return;
  const float inverse = arrays.inverse[channel];
  arrays.dbias[channel] = all.first;
  arrays.dweight[channel] = all.second * inverse;
  const GpuNormSlopes slopes =
      GpuNormFinishGradient(all, arrays.rows, arrays.weight[channel], inverse, arrays.batch_statistics);
  float* const to = Slopes(arrays, grid) + channel;
  to[0] = slopes.a;
  to[arrays.channels] = slopes.b;
  to[2 * arrays.channels] = slopes.c;
}

template <typename T>
__global__ void __launch_bounds__(kGpuNormThreads, 2)
    ApplyBackward(GpuNormBackwardArrays arrays, GpuNormGrid grid) {
  const Place place(grid, arrays.rows, arrays.channels);
  if (place.first >= place.last) return;
  const T* __restrict__ x = static_cast<const T*>(arrays.x);
  const T* __restrict__ dy = static_cast<const T*>(arrays.dy);
  const uint8_t* __restrict__ positive = arrays.positive;
  T* __restrict__ dx = static_cast<T*>(arrays.dx);
  T* __restrict__ dz = static_cast<T*>(arrays.dz);
  float mean[kGroup];
  GpuNormSlopes slopes[kGroup];
  Load(arrays.mean + place.channel, mean);
  const float* from = Slopes(arrays, grid) + place.channel;
#pragma unroll
  for (int i = 0; i < kGroup; ++i)
    slopes[i] = {from[i], from[arrays.channels + i], from[2 * arrays.channels + i]};
#pragma unroll 1  // two rows at a time need more registers than there are
  for (int64_t row = place.first; row < place.last; row += grid.lines) {
    const int64_t at = row * arrays.channels + place.channel;
    float values[kGroup], gradients[kGroup];
    Load(x + at, values);
    LoadGradients(dy, positive, at, gradients);
    if (dz != nullptr) Store(gradients, dz + at);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      values[i] = GpuNormInputGradient(slopes[i], gradients[i], values[i], mean[i]);
    }
    Store(values, dx + at);
  }
}

dim3 Blocks(const GpuNormGrid& grid) {
  return dim3(static_cast<unsigned>(grid.tiles), static_cast<unsigned>(grid.parts));
}

unsigned Squares(int64_t channels) { return static_cast<unsigned>((channels + kSide - 1) / kSide); }

}  // namespace

void GpuNormForward(const GpuNormForwardArrays& arrays, GpuStream stream) {
  constexpr char kWhat[] = "batch normalization";
  const GpuNormGrid grid = MakeGpuNormGrid(arrays.rows, arrays.channels);
  WithGpuNumber(arrays.type, [&](auto zero) {
    using T = decltype(zero);
    if (arrays.batch_statistics)
      Launch(kWhat, SumInput<T>, Blocks(grid), kGpuNormThreads, stream, arrays, grid);
    Launch(kWhat, FinishForward, Squares(arrays.channels), dim3(kSide, kSide), stream, arrays, grid);
    Launch(kWhat, ApplyForward<T>, Blocks(grid), kGpuNormThreads, stream, arrays, grid);
  });
}

void GpuNormBackward(const GpuNormBackwardArrays& arrays, GpuStream stream) {
  constexpr char kWhat[] = "the gradient of batch normalization";
  const GpuNormGrid grid = MakeGpuNormGrid(arrays.rows, arrays.channels);
  WithGpuNumber(arrays.type, [&](auto zero) {
    using T = decltype(zero);
    Launch(kWhat, SumGradients<T>, Blocks(grid), kGpuNormThreads, stream, arrays, grid);
    Launch(kWhat, FinishBackward, Squares(arrays.channels), dim3(kSide, kSide), stream, arrays, grid);
    Launch(kWhat, ApplyBackward<T>, Blocks(grid), kGpuNormThreads, stream, arrays, grid);
  });
}

}  // namespace scalelab::trainer
