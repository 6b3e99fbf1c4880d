// Images of a folder (proto/image_folder.h), decoded whenever they are wanted: a whole ImageNet is no more
// than its list in memory.
//
// In training a sample is a part of the image brought to the wanted size: of 8 to 100 % of its area, of an
// aspect ratio between 3:4 and 4:3, anywhere, flipped with probability one half (Szegedy et al., "Going
// Deeper with Convolutions", 2014, section 6, as torchvision's RandomResizedCrop draws it). Otherwise it is
// the square in the middle whose side is 224/256 of the shorter side (Krizhevsky et al. 2012, at 224 pixels).
// Both from a JPEG that is decoded at the smallest eighth of its size in which the part is not smaller than
// what becomes of it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "catalog/image_folder.h"
#include "catalog/images/resize.h"
#include "worker/trainer/data/batch.h"

namespace scalelab::trainer {

// A part of an image and whether it is to be mirrored.
struct ImagePiece {
  ImageRegion region;
  bool flip = false;
};

// Depends on nothing else: a sample is the same whichever rank trains on it.
ImagePiece DrawPiece(const Augmentation& augmentation, int64_t sample, ImageSize size);
ImagePiece MiddlePiece(ImageSize size);

class ImageFiles {
 public:
  // The first `samples` of them, or all if that is 0, would be of the first classes alone: they are taken at
  // even distances. `threads` decode at the same time.
  ImageFiles(ImageList list, int64_t samples, int side, int threads);

  int64_t size() const { return size_; }
  int label(int64_t sample) const { return list_.label(Index(sample)); }
  std::string path(int64_t sample) const { return list_.path(Index(sample)); }

  // Writes the samples into the first rows of `images`, float [n, 3, side, side] in either memory format:
  // each channel less ImageNet's mean (0.485, 0.456, 0.406) over its deviation (0.229, 0.224, 0.225). Without
  // `augmentation` as for evaluation. Throws TrainerError of kind data that names the first file that cannot
  // be decoded.
  void Fill(std::span<const int32_t> samples, const Augmentation* augmentation, at::Tensor& images) const;

 private:
  int64_t Index(int64_t sample) const { return sample * list_.size() / size_; }
  void FillOne(int64_t sample, const Augmentation* augmentation, std::vector<uint8_t>& scratch, float* out,
               bool channels_last) const;

  ImageList list_;
  int64_t size_;
  int side_, threads_;
};

}  // namespace scalelab::trainer
