// Converts bytes of images to normalized and augmented numbers on a GPU. Images travel to the GPU as bytes,
// because the transfer of floats would take four times as long. The host does not convert them.
#pragma once

#include <cstdint>

#include "worker/trainer/kernels/gpu.h"

namespace scalelab::trainer {

// The crop of an image. `down` and `right` (0 to 8) are the position of its upper left pixel in the image
// with a border of four pixels of zeros. If `flip` is not 0, the crop is mirrored.
struct GpuCrop {
  int32_t down = 4, right = 4, flip = 0;
};

// The arrays are in the memory of the GPU.
struct GpuImageArrays {
  int64_t count = 0;  // number of images
  int side = 0;       // width and height of an image in pixels
  const uint8_t* bytes = nullptr;
  bool interleaved = false;        // false: `bytes` is [count, 3, side, side]; true: [count, side, side, 3]
  const GpuCrop* crops = nullptr;  // one for each image; null: none is cropped
  float mean[3] = {}, deviation[3] = {1, 1, 1};  // one per channel, for values from 0 to 1
  GpuNumber type = GpuNumber::kFloat;
  void* out = nullptr;  // [count, 3, side, side], or with `channels_last` [count, side, side, 3]
  bool channels_last = true;
};

// Returns the index (row * side + column) of the image's pixel that appears at (row, column) of the crop.
// Returns -1 if that place is outside of the image, where all values are zero.
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
