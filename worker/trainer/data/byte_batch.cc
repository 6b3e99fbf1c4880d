#include "worker/trainer/data/byte_batch.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "worker/trainer/data/image_files.h"
#include "worker/trainer/device/device.h"

namespace scalelab::trainer {

static_assert(sizeof(GpuCrop) == 3 * sizeof(int32_t));

ByteBatch AllocateByteBatch(int64_t size, const ImageShape& shape, at::Device device, bool pinned) {
  const at::TensorOptions options = at::TensorOptions(device).pinned_memory(pinned);
  return {at::empty({size, shape.bytes()}, options.dtype(at::kByte)),
          at::empty({size, 3}, options.dtype(at::kInt))};
}

void LoadBytes(const ImageSet& set, std::span<const int32_t> samples, const Augmentation* augmentation,
               ByteBatch& batch, at::Tensor& labels) {
  uint8_t* const pixels = batch.pixels.data_ptr<uint8_t>();
  auto* const crops = reinterpret_cast<GpuCrop*>(batch.crops.data_ptr<int32_t>());
  const size_t count = samples.size();
  if (set.files != nullptr) {
    const auto flips = std::make_unique<bool[]>(count);
    set.files->FillBytes(samples, augmentation, pixels, flips.get());
    for (size_t i = 0; i < count; ++i) crops[i] = {.flip = flips[i] ? 1 : 0};
  } else {
    for (size_t i = 0; i < count; ++i) {
      std::memcpy(pixels + i * set.shape.bytes(), set.image(samples[i]), set.shape.bytes());
      const CropFlip crop = augmentation == nullptr
                                ? CropFlip{}
                                : DrawCropFlip(augmentation->seed, augmentation->epoch, samples[i]);
      crops[i] = {.down = crop.down, .right = crop.right, .flip = crop.flip ? 1 : 0};
    }
  }
  for (size_t i = 0; i < count; ++i) labels.data_ptr<int64_t>()[i] = set.labels[samples[i]];
}

const Normalization& NormalizationOf(const ImageSet& set) {
  return set.files != nullptr ? kImageNetNormalization : kCifar10Normalization;
}

ImageKernel ImageKernelOf(at::Device device) {
#ifdef SCALELAB_CUDA
  if (ExecutesKernels(device)) return GpuImages;
#endif
  (void)device;
  return nullptr;
}

void ConvertBytes(const ImageSet& set, const ByteBatch& batch, int64_t samples, at::Tensor& images,
                  ImageKernel kernel) {
  if (samples == 0) return;
  const Normalization& by = NormalizationOf(set);
  GpuImageArrays arrays{
      .count = samples,
      .side = set.shape.side,
      .bytes = batch.pixels.data_ptr<uint8_t>(),
      .interleaved = set.files != nullptr,
      .crops = reinterpret_cast<const GpuCrop*>(batch.crops.data_ptr<int32_t>()),
      .type = images.scalar_type() == at::kHalf       ? GpuNumber::kHalf
              : images.scalar_type() == at::kBFloat16 ? GpuNumber::kBFloat16
                                                      : GpuNumber::kFloat,
      .out = images.data_ptr(),
      .channels_last = images.stride(1) == 1,
  };
  std::copy_n(by.mean, kChannels, arrays.mean);
  std::copy_n(by.deviation, kChannels, arrays.deviation);
  kernel(arrays, CurrentStream(images.device()));
}

}  // namespace scalelab::trainer
