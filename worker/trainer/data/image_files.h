// Images of a folder (catalog/image_folder.h), decoded on demand. Only the list of files is in memory.
//
// A training sample is a random part of the image, resized: 8 to 100 % of its area, with an aspect ratio
// between 3:4 and 4:3, flipped with probability one half (Szegedy et al., "Going Deeper with Convolutions",
// 2014, section 6, as torchvision's RandomResizedCrop draws it). A test sample is the square in the middle
// whose side is 224/256 of the shorter side (Krizhevsky et al. 2012, at 224 pixels). A JPEG is decoded at the
// smallest multiple of an eighth of its size at which the part is not smaller than the result.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "catalog/image_folder.h"
#include "catalog/images/resize.h"
#include "worker/trainer/data/batch.h"

namespace scalelab::trainer {

// A part of an image, optionally mirrored.
struct ImagePiece {
  ImageRegion region;
  bool flip = false;
};

// Draws the part of a training sample. It depends on the arguments only, so it is the same on every rank.
ImagePiece DrawPiece(const Augmentation& augmentation, int64_t sample, ImageSize size);
// Returns the part of a test sample.
ImagePiece MiddlePiece(ImageSize size);

class ImageFiles {
 public:
  // Uses `samples` images of the list at even distances (the first ones would all be of the first classes),
  // or all if `samples` is 0. `threads` threads decode in parallel.
  ImageFiles(ImageList list, int64_t samples, int side, int threads);

  int64_t size() const { return size_; }
  int label(int64_t sample) const { return list_.label(Index(sample)); }
  std::string path(int64_t sample) const { return list_.path(Index(sample)); }

  // Writes the samples into the first rows of `images`, float [n, 3, side, side] in either memory format.
  // Channels are normalized by ImageNet's mean (0.485, 0.456, 0.406) and deviation (0.229, 0.224, 0.225).
  // Uses test samples if `augmentation` is null. Throws TrainerError of kind data that names the first file
  // that cannot be decoded.
  void Fill(std::span<const int32_t> samples, const Augmentation* augmentation, at::Tensor& images) const;
  // Writes the bytes of the samples to `pixels`, [n, side, side, 3], and whether each is to be mirrored to `flips`, [n]. Otherwise
  // the same as Fill.
  void FillBytes(std::span<const int32_t> samples, const Augmentation* augmentation, uint8_t* pixels,
                 bool* flips) const;

 private:
  int64_t Index(int64_t sample) const { return sample * list_.size() / size_; }
  // Calls body(i, memory of the thread) for each sample i on the threads. Throws the exception of the first sample that failed.
  void ForEach(std::span<const int32_t> samples,
               const std::function<void(int64_t, std::vector<uint8_t>&)>& body) const;
  // Writes the part of the sample, resized, to `pixels`. Returns whether it is to be mirrored.
  bool Decode(int64_t sample, const Augmentation* augmentation, uint8_t* pixels) const;

  ImageList list_;
  int64_t size_;
  int side_, threads_;
};

}  // namespace scalelab::trainer
