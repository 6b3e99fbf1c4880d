// The images of the data set "synthetic".
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "worker/trainer/data/dataset.h"

namespace scalelab::trainer {

// Images that show a pattern of their class under noise. An image depends on its index, and is made when it is first used, because
// a short run uses few of them.
class SyntheticImages {
 public:
  // `first` selects different images for training and for testing. Throws std::bad_alloc if the images do not fit into the address space.
  SyntheticImages(const ImageShape& shape, int64_t size, uint64_t first);

  uint16_t label(int64_t i) const;
  // Returns the planes of image i. Any thread may call it.
  const uint8_t* image(int64_t i) const;

 private:
  struct Unmap {
    int64_t bytes = 0;
    void operator()(uint8_t* memory) const;
  };

  void Make(int64_t i) const;

  const ImageShape shape_;
  const uint64_t first_;
  const int64_t across_;           // squares in a row of a pattern
  std::vector<uint8_t> patterns_;  // of each class, a value for each 8 x 8 square of each channel
  // Memory of its own, with small pages: in memory of malloc, the first images would occupy all pages.
  const std::unique_ptr<uint8_t[], Unmap> pixels_;
  mutable std::mutex making_;  // protects the pixels of images that are not made
  mutable std::vector<std::atomic<bool>> made_;
};

}  // namespace scalelab::trainer
