// Image sets in memory.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "worker/trainer/training_spec.h"

namespace scalelab::trainer {

inline constexpr int kChannels = 3;

// What all images of a set have in common; those of CIFAR-10 unless it is told otherwise.
struct ImageShape {
  int side = 32;  // of a square, in pixels
  int classes = 10;

  int64_t plane() const { return int64_t{side} * side; }
  int64_t bytes() const { return kChannels * plane(); }
};

// Images as bytes, each of them red, green and blue plane row by row, and their classes.
struct ImageSet {
  ImageShape shape;
  int64_t size = 0;
  std::unique_ptr<uint8_t[]> pixels;  // size * shape.bytes()
  std::vector<uint16_t> labels;       // size, each below shape.classes

  const uint8_t* image(int64_t i) const { return pixels.get() + i * shape.bytes(); }
};

struct Dataset {
  ImageSet train;
  ImageSet test;  // empty when the run does not evaluate
};

// What the images of data set `spec.dataset` will be, without reading them. Throws as LoadDataset does.
ImageShape ReadShape(const TrainingSpec& spec);

// Data set `spec.dataset`. Of the training set the first spec.train_samples, if that is not 0.
//
// "cifar10": from the files in spec.data_dir.
//
// "synthetic": images of spec.image_size x spec.image_size pixels in spec.classes classes (0: as CIFAR-10),
// made from their index alone, whatever the seed: a pattern of the class under noise. There are 50,000 for
// training, or as many as fit into 200 MiB (17,066 of 64 x 64 pixels, 1,393 of 224 x 224), or
// spec.train_samples of them, up to 50,000, whatever memory they take on each rank; and a fifth of what fits
// for testing.
//
// Throws TrainerError of kind data.
Dataset LoadDataset(const TrainingSpec& spec);

}  // namespace scalelab::trainer
