// Bytes of images -> normalised, augmented tensors.
#pragma once

#include <cstdint>
#include <span>

#include "worker/trainer/data/dataset.h"
#include "worker/trainer/torch.h"

namespace scalelab::trainer {

struct Batch {
  at::Tensor images;  // float [n, 3, side, side] in the memory format of the run
  at::Tensor labels;  // int64 [n]
};

// For `size` images of `side` x `side` pixels, in host memory that a GPU copies from by itself if `pinned`.
Batch AllocateBatch(int64_t size, int64_t side, at::MemoryFormat format, bool pinned = false);

// He et al. 2015, section 4.2: four pixels of zeros (after normalisation) on each side, a random crop of that
// to the size it had, a flip with probability one half.
struct CropFlip {
  int down = 4, right = 4;  // corner of the crop in the padded image, 0 to 8
  bool flip = false;
};

// Depends on nothing else, so that a sample is augmented the same way whichever rank trains on it.
CropFlip DrawCropFlip(uint64_t seed, int64_t epoch, int64_t sample);

// What augmentation is drawn from, beside the sample's number.
struct Augmentation {
  uint64_t seed = 0;
  int64_t epoch = 0;
};

// Writes the samples into the first rows of `batch`, which was allocated for set.shape.side: normalised, and
// with `augmentation` at random, as CropFlip says, or ImageFiles where the images are files. Throws
// TrainerError for a file that cannot be decoded.
void LoadBatch(const ImageSet& set, std::span<const int32_t> samples, const Augmentation* augmentation,
               Batch& batch);

// Of images in memory: writes the samples into the first rows of `batch`, each channel less its mean over its
// deviation (of the CIFAR-10 training set); `crops` is empty or one for each sample. `batch` was allocated
// for set.shape.side.
void FillBatch(const ImageSet& set, std::span<const int32_t> samples, std::span<const CropFlip> crops,
               Batch& batch);

}  // namespace scalelab::trainer
