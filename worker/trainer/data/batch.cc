#include "worker/trainer/data/batch.h"

#include <algorithm>

#include "worker/trainer/data/image_files.h"
#include "worker/trainer/data/random.h"

namespace scalelab::trainer {
namespace {

constexpr int kPad = 4;

constexpr NormalizedBytes kCifar10Normal = NormalizeBytes(kCifar10Normalization);

// Writes one image of `side` x `side` pixels to `out`; channel c of a pixel is at pixel * pixel_stride +
// c * channel_stride. The layout is a template argument for the speed of the inner loop.
template <bool channels_last>
void WriteImage(const uint8_t* image, int side, const CropFlip& crop, float* out) {
  const int64_t plane = int64_t{side} * side;
  constexpr int64_t pixel_stride = channels_last ? kChannels : 1;
  const int64_t channel_stride = channels_last ? 1 : plane;
  const int shift = crop.right - kPad;  // source column of target column 0, before flipping
  const int first = std::max(0, -shift), last = std::min(side, side - shift);
  const bool whole = crop.down == kPad && crop.right == kPad;
  if (!whole) std::fill_n(out, kChannels * plane, 0.0f);
  for (int y = 0; y < side; ++y) {
    const int source_row = y + crop.down - kPad;
    if (source_row < 0 || source_row >= side) continue;
    const uint8_t* source = image + source_row * side + shift;
    float* row = out + y * side * pixel_stride;
    // A flip mirrors the crop: target column x gets the pixel of column side - 1 - x.
    const int64_t step = crop.flip ? -pixel_stride : pixel_stride;
    float* target = row + (crop.flip ? side - 1 - first : first) * pixel_stride;
    for (int x = first; x < last; ++x, target += step) {
      for (int c = 0; c < kChannels; ++c)
        target[c * channel_stride] = kCifar10Normal[c][source[c * plane + x]];
    }
  }
}

}  // namespace

Batch AllocateBatch(int64_t size, int64_t side, at::MemoryFormat format, bool pinned) {
  const at::TensorOptions images = at::TensorOptions(at::kFloat).pinned_memory(pinned);
  return {at::empty({size, kChannels, side, side}, images.memory_format(format)),
          at::empty({size}, images.dtype(at::kLong))};
}

Batch AllocateBatch(int64_t size, const ImageShape& shape, at::MemoryFormat format, bool pinned) {
  if (shape.tokens == 0) return AllocateBatch(size, shape.side, format, pinned);
  const at::TensorOptions options = at::TensorOptions(at::kLong).pinned_memory(pinned);
  return {at::empty({size, shape.tokens}, options), at::empty({size, shape.tokens}, options)};
}

CropFlip DrawCropFlip(uint64_t seed, int64_t epoch, int64_t sample) {
  // Samples count from 1 here, because key 0 is used for the order of the epoch.
  Random random(seed, static_cast<uint64_t>(epoch), static_cast<uint64_t>(sample) + 1);
  CropFlip crop;
  crop.down = static_cast<int>(random.Below(2 * kPad + 1));
  crop.right = static_cast<int>(random.Below(2 * kPad + 1));
  crop.flip = random.Below(2) == 1;
  return crop;
}

void FillBatch(const ImageSet& set, std::span<const int32_t> samples, std::span<const CropFlip> crops,
               Batch& batch) {
  float* images = batch.images.data_ptr<float>();
  int64_t* labels = batch.labels.data_ptr<int64_t>();
  const bool channels_last = batch.images.stride(1) == 1;
  for (size_t i = 0; i < samples.size(); ++i) {
    const CropFlip crop = crops.empty() ? CropFlip{} : crops[i];
    const uint8_t* image = set.image(samples[i]);
    float* out = images + static_cast<int64_t>(i) * set.shape.bytes();
    if (channels_last) {
      WriteImage<true>(image, set.shape.side, crop, out);
    } else {
      WriteImage<false>(image, set.shape.side, crop, out);
    }
    labels[i] = set.labels[samples[i]];
  }
}

namespace {

void CopyText(const ImageSet& set, std::span<const int32_t> samples, Batch& batch) {
  auto* tokens = static_cast<int64_t*>(batch.images.data_ptr());
  auto* labels = static_cast<int64_t*>(batch.labels.data_ptr());
  for (const int32_t sample : samples) {
    const auto first = set.text.begin() + int64_t{sample} * set.shape.tokens;
    tokens = std::copy_n(first, set.shape.tokens, tokens);
    labels = std::copy_n(first + 1, set.shape.tokens, labels);
  }
}

}  // namespace

void LoadBatch(const ImageSet& set, std::span<const int32_t> samples, const Augmentation* augmentation,
               Batch& batch) {
  if (set.shape.tokens > 0) return CopyText(set, samples, batch);
  if (set.files != nullptr) {
    set.files->Fill(samples, augmentation, batch.images);
    for (size_t i = 0; i < samples.size(); ++i) batch.labels.data_ptr<int64_t>()[i] = set.labels[samples[i]];
    return;
  }
  std::vector<CropFlip> crops;
  if (augmentation != nullptr) {
    for (int32_t sample : samples)
      crops.push_back(DrawCropFlip(augmentation->seed, augmentation->epoch, sample));
  }
  FillBatch(set, samples, crops, batch);
}

}  // namespace scalelab::trainer
