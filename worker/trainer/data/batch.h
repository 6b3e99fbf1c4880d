// Converts bytes of images to normalized and augmented tensors.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "worker/trainer/data/dataset.h"
#include "worker/trainer/torch.h"

namespace scalelab::trainer {

struct Batch {
  at::Tensor images;  // float [n, 3, side, side] in the memory format of the run; int64 [n, tokens] for text
  at::Tensor labels;  // int64 [n]; [n, tokens] for text

  int64_t samples() const { return labels.size(0); }
};

// Allocates a batch of `size` images of `side` x `side` pixels in host memory; `pinned` memory can be copied
// to a GPU asynchronously.
Batch AllocateBatch(int64_t size, int64_t side, at::MemoryFormat format, bool pinned = false);
// Allocates a batch of `size` samples of this shape.
Batch AllocateBatch(int64_t size, const ImageShape& shape, at::MemoryFormat format, bool pinned = false);

// Mean and deviation of the red, green and blue values of a data set, from 0 to 1.
struct Normalization {
  float mean[kChannels], deviation[kChannels];
};
inline constexpr Normalization kCifar10Normalization = {{0.4914f, 0.4822f, 0.4465f},
                                                        {0.2470f, 0.2435f, 0.2616f}};
inline constexpr Normalization kImageNetNormalization = {{0.485f, 0.456f, 0.406f}, {0.229f, 0.224f, 0.225f}};

// The normalized values of each byte.
using NormalizedBytes = std::array<std::array<float, 256>, kChannels>;
constexpr NormalizedBytes NormalizeBytes(const Normalization& by) {
  NormalizedBytes table{};
  for (int c = 0; c < kChannels; ++c) {
    for (int v = 0; v < 256; ++v)
      table[c][v] = (static_cast<float>(v) / 255.0f - by.mean[c]) / by.deviation[c];
  }
  return table;
}

// The augmentation of He et al. 2015, section 4.2: pad the normalized image with four pixels of zeros on each
// side, crop it at random to its original size, and flip it with probability one half.
struct CropFlip {
  int down = 4, right = 4;  // corner of the crop in the padded image, 0 to 8
  bool flip = false;
};

// Draws the augmentation of a sample. It depends on the arguments only, so it is the same on every rank.
CropFlip DrawCropFlip(uint64_t seed, int64_t epoch, int64_t sample);

// The seed and epoch of random augmentation; the sample's number is the third input.
struct Augmentation {
  uint64_t seed = 0;
  int64_t epoch = 0;
};

// Writes the samples, normalized, into the first rows of `batch`, which was allocated for set.shape.side. If
// `augmentation` is not null, images in memory are augmented by CropFlip and image files by ImageFiles.
// Throws TrainerError for a file that cannot be decoded.
void LoadBatch(const ImageSet& set, std::span<const int32_t> samples, const Augmentation* augmentation,
               Batch& batch);

// Writes samples in memory into the first rows of `batch`, which was allocated for set.shape.side. Each
// channel is normalized by the mean and deviation of the CIFAR-10 training set. `crops` is empty or has one
// element for each sample.
void FillBatch(const ImageSet& set, std::span<const int32_t> samples, std::span<const CropFlip> crops,
               Batch& batch);

}  // namespace scalelab::trainer
