// Batch normalization on a GPU (Ioffe and Szegedy 2015, arXiv 1502.03167), fused with the addition and rectification that follow
// it. Memory traffic limits its speed: forward reads the input twice, and the residual once; backward reads the input, the output's
// gradient and one bit for each output twice.
//
// All sums are in single precision. Each thread sums its rows, a block merges the sums of its threads, and a second kernel merges
// those of the blocks, always in the same order and without atomic operations. So the result depends on the arguments only, not on
// the number of processors of the GPU. Variances are computed from shifted sums of few rows, and merged as in Chan, Golub and
// LeVeque 1979, "Updating formulae and a pairwise algorithm for computing sample variances".
#pragma once

#include <algorithm>
#include <cstdint>

#include "worker/trainer/kernels/gpu.h"

namespace scalelab::trainer {

// Neighbouring channels that one thread computes. The number of channels must be a multiple of it.
inline constexpr int kGpuNormGroup = 8;
inline constexpr int kGpuNormThreads = 512;  // of a block

// How blocks of threads divide an array of `rows` x `channels`. Thread t of a block computes group t % width of the channels of its
// tile, and every `lines`-th row of its part from row t / width on.
struct GpuNormGrid {
  int width = 1;  // groups of a tile, a power of two, at most 32
  int lines = kGpuNormThreads;
  int tiles = 1;  // of the channels
  int parts = 1;  // of the rows

  // Part p has the rows from FirstRow(rows, p) to FirstRow(rows, p + 1).
  SCALELAB_HOST_DEVICE int64_t FirstRow(int64_t rows, int part) const { return rows * part / parts; }
};

inline GpuNormGrid MakeGpuNormGrid(int64_t rows, int64_t channels) {
  constexpr int64_t kBlocks = 512;          // about as many as an A100 or H100 executes at the same time
  constexpr int64_t kLeastRowsAThread = 4;  // with fewer, merging parts would take longer than computing them
  const int64_t groups = channels / kGpuNormGroup;
  GpuNormGrid grid;
  while (grid.width < std::min<int64_t>(groups, 32)) grid.width *= 2;
  grid.lines = kGpuNormThreads / grid.width;
  grid.tiles = static_cast<int>((groups + grid.width - 1) / grid.width);
  const int64_t most = std::max<int64_t>(1, kBlocks / grid.tiles);
  grid.parts = static_cast<int>(std::clamp<int64_t>(rows / (kLeastRowsAThread * grid.lines), 1, most));
  return grid;
}

// Floats of the workspace of a call.
inline int64_t GpuNormWorkspace(int64_t rows, int64_t channels) {
  return (2 * MakeGpuNormGrid(rows, channels).parts + 3) * channels;
}

// The arrays of `rows` x `channels` elements have the channels last, numbers of `type`, and begin at multiples of 16 bytes. The other
// arrays of floats have one element for each channel, except for the workspace. All arrays are in the memory of the GPU.
struct GpuNormForwardArrays {
  GpuNumber type = GpuNumber::kFloat;
  int64_t rows = 0, channels = 0;
  const void* x = nullptr;
  const void* residual = nullptr;  // null: nothing is added
  const float *weight = nullptr, *bias = nullptr;
  // With `batch_statistics`, x is normalized by its own mean and variance, and the running mean and variance
  // are updated with them. Otherwise x is normalized by the running mean and variance.
  float *running_mean = nullptr, *running_var = nullptr;
  bool batch_statistics = true, relu = false;
  float momentum = 0.1f, epsilon = 1e-5f;
  float* workspace = nullptr;
  void* y = nullptr;  // (x - mean) * inverse * weight + bias (+ residual), rectified if `relu`
  float *mean = nullptr, *inverse = nullptr;  // inverse: 1 / sqrt(variance + epsilon)
  // Bit c % 8 of byte (row * channels + c) / 8 is set unless y was negative or 0 before rectification. If
  // null, the bits are not stored.
  uint8_t* positive = nullptr;
};

struct GpuNormBackwardArrays {
  GpuNumber type = GpuNumber::kFloat;
  int64_t rows = 0, channels = 0;
  const void *x = nullptr, *dy = nullptr;
  const uint8_t* positive = nullptr;  // from the forward pass; null: it did not rectify
  const float *weight = nullptr, *mean = nullptr, *inverse = nullptr;
  bool batch_statistics = true;
  float* workspace = nullptr;
  void* dx = nullptr;
  // The gradient of the residual: 0 where y was rectified to 0, else dy. If null, it is not stored.
  void* dz = nullptr;
  float *dweight = nullptr, *dbias = nullptr;
};

// Enqueue kernels on the stream. They neither wait for the GPU nor allocate memory, so they can be recorded into a CUDA graph. Throw
// std::runtime_error if a kernel cannot be launched. Defined in builds with CUDA only.
void GpuNormForward(const GpuNormForwardArrays& arrays, GpuStream stream);
void GpuNormBackward(const GpuNormBackwardArrays& arrays, GpuStream stream);

}  // namespace scalelab::trainer
