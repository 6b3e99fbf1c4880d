// Batches of images as bytes, which a GPU normalizes and augments (kernels/gpu_images.h).
#pragma once

#include "worker/trainer/data/batch.h"
#include "worker/trainer/kernels/gpu_images.h"

namespace scalelab::trainer {

struct ByteBatch {
  at::Tensor
      pixels;  // uint8 [n, 3 * side * side]: as in memory (ImageSet), or of image files pixels of three bytes, row by row
  at::Tensor crops;  // int32 [n, 3]: the members of GpuCrop
};

// Allocates a batch of `size` images on the device, or in host memory; `pinned` host memory can be copied to a GPU asynchronously.
ByteBatch AllocateByteBatch(int64_t size, const ImageShape& shape, at::Device device, bool pinned = false);

// Writes the bytes and the augmentation of the samples into the first rows of `batch`, which is in host memory, and their labels
// into the first elements of `labels`. Otherwise the same as LoadBatch. The set must have images.
void LoadBytes(const ImageSet& set, std::span<const int32_t> samples, const Augmentation* augmentation,
               ByteBatch& batch, at::Tensor& labels);

// Returns the mean and deviation with which the images of the set are normalized.
const Normalization& NormalizationOf(const ImageSet& set);

// Converts the images of a batch. GpuImages on a GPU; a test on a CPU has another one, with the same arithmetic.
using ImageKernel = void (*)(const GpuImageArrays& arrays, GpuStream stream);

// Returns the kernel for images on this device; null if there is none.
ImageKernel ImageKernelOf(at::Device device);

// Enqueues the conversion of the first `samples` images of `batch`, which has images of `set`, on the calling thread's current
// stream. It writes the numbers of LoadBatch, rounded to the type of `images`: float32, float16 or bfloat16, [n, 3, side, side] in
// either memory format. Both are on the same device.
void ConvertBytes(const ImageSet& set, const ByteBatch& batch, int64_t samples, at::Tensor& images,
                  ImageKernel kernel);

}  // namespace scalelab::trainer
