// Converts bytes of images to normalized and augmented numbers on a GPU. A byte takes a quarter of the time of a float on the way to
// the GPU, and the host only copies.
#pragma once

#include <cstdint>

#include "worker/trainer/kernels/gpu.h"

namespace scalelab::trainer {

// Where the crop of an image begins in the image with four pixels of zeros on each side (0 to 8), and whether it is mirrored.
struct GpuCrop {
  int32_t down = 4, right = 4, flip = 0;
};

// The arrays are in the memory of the GPU.
struct GpuImageArrays {
  int64_t count = 0;  // images
  int side = 0;       // pixels of a side of an image
  const uint8_t* bytes =
      nullptr;  // count images of three planes of side x side, or with `interleaved` of pixels of three bytes
  bool interleaved = false;
  const GpuCrop* crops = nullptr;                // one for each image; null: none is cropped
  float mean[3] = {}, deviation[3] = {1, 1, 1};  // of each channel, for values from 0 to 1
  GpuNumber type = GpuNumber::kFloat;
  void* out = nullptr;  // [count, 3, side, side], or with `channels_last` [count, side, side, 3]
  bool channels_last = true;
};

// Returns the pixel of the image that pixel (row, column) of its crop shows, as row * side + column; or -1 for a pixel of zeros.
SCALELAB_HOST_DEVICE inline int GpuSourcePixel(const GpuCrop& crop, int side, int row, int column) {
  constexpr int kPad = 4;
  const int source_row = row + crop.down - kPad;
  const int source_column = (crop.flip != 0 ? side - 1 - column : column) + crop.right - kPad;
  const bool inside = source_row >= 0 && source_row < side && source_column >= 0 && source_column < side;
  return inside ? source_row * side + source_column : -1;
}

SCALELAB_HOST_DEVICE inline float GpuNormalizedByte(uint8_t byte, float mean, float deviation) {
  return (static_cast<float>(byte) / 255.0f - mean) / deviation;
}

// Enqueues the conversion on the stream. Throws std::runtime_error if the kernel cannot be launched. Defined in builds with CUDA only.
void GpuImages(const GpuImageArrays& arrays, GpuStream stream);

}  // namespace scalelab::trainer
