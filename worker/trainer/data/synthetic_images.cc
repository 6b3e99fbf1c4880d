#include "worker/trainer/data/synthetic_images.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "worker/trainer/data/random.h"

namespace scalelab::trainer {
namespace {

uint8_t* Map(int64_t bytes) {
  void* memory = mmap(nullptr, static_cast<size_t>(std::max<int64_t>(1, bytes)), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return static_cast<uint8_t*>(memory);
}

Random NoiseOf(uint64_t first, int64_t i) { return Random(11, first, static_cast<uint64_t>(i)); }

}  // namespace

void SyntheticImages::Unmap::operator()(uint8_t* memory) const {
  munmap(memory, static_cast<size_t>(std::max<int64_t>(1, bytes)));
}

SyntheticImages::SyntheticImages(const ImageShape& shape, int64_t size, uint64_t first)
    : shape_(shape),
      first_(first),
      across_((shape.side + 7) / 8),
      pixels_(Map(size * shape.bytes()), Unmap{size * shape.bytes()}),
      made_(static_cast<size_t>(size)) {
  // One random value for each square, so that the pattern survives cropping.
  const int64_t squares = kChannels * across_ * across_;
  patterns_.resize(shape.classes * squares);
  for (int64_t c = 0; c < shape.classes; ++c) {
    for (int64_t s = 0; s < squares; ++s) {
      patterns_[c * squares + s] = static_cast<uint8_t>((64 + Random(7, c, s).Below(128)) / 2);
    }
  }
}

uint16_t SyntheticImages::label(int64_t i) const {
  return static_cast<uint16_t>(NoiseOf(first_, i).Below(shape_.classes));
}

const uint8_t* SyntheticImages::image(int64_t i) const {
  if (!made_[i].load(std::memory_order_acquire)) Make(i);
  return pixels_.get() + i * shape_.bytes();
}

void SyntheticImages::Make(int64_t i) const {
  const std::lock_guard<std::mutex> lock(making_);
  if (made_[i].load(std::memory_order_relaxed)) return;
  Random random = NoiseOf(first_, i);
  const int64_t label = static_cast<int64_t>(random.Below(shape_.classes));
  uint8_t* out = pixels_.get() + i * shape_.bytes();
  for (int64_t p = 0; p < shape_.bytes(); p += 8) {
    const uint64_t noise = random.Next() & 0x7f7f7f7f7f7f7f7fu;
    std::memcpy(out + p, &noise, std::min<int64_t>(8, shape_.bytes() - p));
  }
  const uint8_t* pattern = patterns_.data() + label * kChannels * across_ * across_;
  for (int c = 0; c < kChannels; ++c) {
    for (int y = 0; y < shape_.side; ++y) {
      const uint8_t* values = pattern + (c * across_ + y / 8) * across_;
      for (int x = 0; x < shape_.side; ++x, ++out) *out = static_cast<uint8_t>(*out + values[x / 8]);
    }
  }
  made_[i].store(true, std::memory_order_release);
}

}  // namespace scalelab::trainer
