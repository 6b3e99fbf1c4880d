// Image sets in memory.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "worker/trainer/training_spec.h"

namespace scalelab::trainer {

inline constexpr int kChannels = 3, kSide = 32, kClasses = 10;
inline constexpr int64_t kPlane = kSide * kSide;
inline constexpr int64_t kImageBytes = kChannels * kPlane;

// Images as bytes, each of them red, green and blue plane row by row, and their classes.
struct ImageSet {
  int64_t size = 0;
  std::unique_ptr<uint8_t[]> pixels;  // size * kImageBytes
  std::vector<uint8_t> labels;        // size

  const uint8_t* image(int64_t i) const { return pixels.get() + i * kImageBytes; }
};

struct Dataset {
  ImageSet train;
  ImageSet test;  // empty when the run does not evaluate
};

// Data set `spec.dataset`: "cifar10" from the files in spec.data_dir, or "synthetic" (50,000 and 10,000
// images of the same shape, made from their index: a pattern of the class under noise, the same whatever the
// seed). Of the training set the first spec.train_samples, if that is not 0. Throws TrainerError of kind
// data.
Dataset LoadDataset(const TrainingSpec& spec);

}  // namespace scalelab::trainer
