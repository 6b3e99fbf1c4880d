// Data sets of images and of text.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "worker/trainer/training_spec.h"

namespace scalelab::trainer {

inline constexpr int kChannels = 3;

// Properties shared by all images of a set. The defaults are those of CIFAR-10.
struct ImageShape {
  int side = 32;     // of a square, in pixels
  int classes = 10;  // or different tokens
  int tokens = 0;    // of a sample that is text; 0: samples are images

  int64_t plane() const { return int64_t{side} * side; }
  int64_t bytes() const { return kChannels * plane(); }
};

class ImageFiles;
class SyntheticImages;

// Images and their classes, or text. Images are files, synthetic, or bytes in memory; in memory each image has its red,
// green and blue planes one after another, row by row.
struct ImageSet {
  ImageShape shape;
  int64_t size = 0;
  std::unique_ptr<uint8_t[]> pixels;        // size * shape.bytes(), unless one of the next two is set
  std::shared_ptr<const ImageFiles> files;  // if the images are files
  std::shared_ptr<const SyntheticImages> synthetic;  // if they are synthetic
  std::vector<uint16_t> labels;                      // size, each below shape.classes
  // Of text: sample i is the shape.tokens tokens from place i * shape.tokens on, its labels are those that
  // follow each of them.
  std::vector<uint16_t> text;

  // Returns the planes of image i. The images must not be files. Any thread may call it.
  const uint8_t* image(int64_t i) const;
};

struct Dataset {
  ImageSet train;
  ImageSet test;  // empty if the run does not evaluate
};

// Returns the shape of the images of data set `spec.dataset` without reading them. Throws
// as LoadDataset does.
ImageShape ReadShape(const TrainingSpec& spec);

// Loads data set `spec.dataset`. If spec.train_samples is not 0, the training set has only the
// first spec.train_samples images.
//
// "imagefolder": the files that spec.data_dir lists (catalog/image_folder.h), as squares of spec.image_size
// pixels (0: 224). spec.train_samples selects files at even distances. Only the list is in memory.
//
// "cifar10": the files in spec.data_dir.
//
// "synthetic": images of spec.image_size x spec.image_size pixels in spec.classes classes (0: as CIFAR-10).
// An image is a pattern of its class under noise; it depends on its index, not on the seed. By default the
// training set has 50,000 images or as many as fit into 200 MiB (17,066 of 64 x 64 pixels, 1,393 of 224 x
// 224). With spec.train_samples it has that many, up to 50,000, even if they need more memory on each rank.
// The test set has a fifth of the default number.
//
// "tokens": the files train.bin and val.bin in spec.data_dir (catalog/datasets.h), cut into samples of spec.sequence_length
// tokens. spec.train_samples counts samples.
//
// "synthetic-tokens": random text in which three of four tokens follow from the one before. By default the training text has a
// million tokens; the test text has a fifth of it.
//
// Throws TrainerError of kind data.
Dataset LoadDataset(const TrainingSpec& spec);

}  // namespace scalelab::trainer
