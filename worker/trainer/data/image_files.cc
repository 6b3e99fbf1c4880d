#include "worker/trainer/data/image_files.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <system_error>
#include <thread>

#include "worker/trainer/data/random.h"
#include "worker/trainer/errors.h"

namespace scalelab::trainer {
namespace {

constexpr double kSmallestArea = 0.08, kMiddle = 224.0 / 256;
const double kLogWidest = std::log(4.0 / 3.0);

constexpr NormalizedBytes kImageNetNormal = NormalizeBytes(kImageNetNormalization);

// Returns a number from 0 to 1.
double Uniform(Random& random) { return static_cast<double>(random.Next() >> 11) * 0x1p-53; }

ImageRegion Centered(ImageSize size, double width, double height) {
  return {(size.width - width) / 2, (size.height - height) / 2, width, height};
}

[[noreturn]] void Fail(const std::string& path, const absl::Status& why) {
  throw TrainerError(path + ": " + std::string(why.message()) +
                         "; replace the file (scalelab data verify imagefolder finds all such files)",
                     ErrorKind::kData);
}

// Converts a square of pixels to the layout of a batch.
void Normalize(const uint8_t* rgb, int side, bool flip, bool channels_last, float* out) {
  const int64_t plane = int64_t{side} * side;
  const int64_t pixel_stride = channels_last ? kChannels : 1, channel_stride = channels_last ? 1 : plane;
  for (int y = 0; y < side; ++y) {
    float* target = out + (int64_t{y} * side + (flip ? side - 1 : 0)) * pixel_stride;
    const int64_t step = flip ? -pixel_stride : pixel_stride;
    for (int x = 0; x < side; ++x, rgb += kChannels, target += step) {
      for (int c = 0; c < kChannels; ++c) target[c * channel_stride] = kImageNetNormal[c][rgb[c]];
    }
  }
}

}  // namespace

ImagePiece DrawPiece(const Augmentation& augmentation, int64_t sample, ImageSize size) {
  // Uses the same key as DrawCropFlip.
  Random random(augmentation.seed, static_cast<uint64_t>(augmentation.epoch),
                static_cast<uint64_t>(sample) + 1);
  ImagePiece piece;
  piece.flip = random.Below(2) == 1;
  const double area = static_cast<double>(size.width) * size.height;
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double wanted = area * (kSmallestArea + (1 - kSmallestArea) * Uniform(random));
    const double ratio = std::exp(kLogWidest * (2 * Uniform(random) - 1));
    const auto width = static_cast<int64_t>(std::lround(std::sqrt(wanted * ratio)));
    const auto height = static_cast<int64_t>(std::lround(std::sqrt(wanted / ratio)));
    if (width < 1 || height < 1 || width > size.width || height > size.height) continue;
    piece.region = {static_cast<double>(random.Below(size.width - width + 1)),
                    static_cast<double>(random.Below(size.height - height + 1)), static_cast<double>(width),
                    static_cast<double>(height)};
    return piece;
  }
  // The image is very long: take the largest part of its middle that is allowed.
  piece.region = Centered(size, std::min<double>(size.width, size.height * 4.0 / 3.0),
                          std::min<double>(size.height, size.width * 4.0 / 3.0));
  return piece;
}

ImagePiece MiddlePiece(ImageSize size) {
  const double side = kMiddle * std::min(size.width, size.height);
  return {Centered(size, side, side), false};
}

ImageFiles::ImageFiles(ImageList list, int64_t samples, int side, int threads)
    : list_(std::move(list)),
      size_(samples == 0 ? list_.size() : std::min(samples, list_.size())),
      side_(side),
      threads_(threads) {}

void ImageFiles::Fill(std::span<const int32_t> samples, const Augmentation* augmentation,
                      at::Tensor& images) const {
  float* out = images.data_ptr<float>();
  const bool channels_last = images.stride(1) == 1;
  const int64_t values = int64_t{kChannels} * side_ * side_;
  ForEach(samples, [&](int64_t i, std::vector<uint8_t>& scratch) {
    scratch.resize(values);
    const bool flip = Decode(samples[i], augmentation, scratch.data());
    Normalize(scratch.data(), side_, flip, channels_last, out + i * values);
  });
}

void ImageFiles::FillBytes(std::span<const int32_t> samples, const Augmentation* augmentation,
                           uint8_t* pixels, bool* flips) const {
  const int64_t values = int64_t{kChannels} * side_ * side_;
  ForEach(samples, [&](int64_t i, std::vector<uint8_t>&) {
    flips[i] = Decode(samples[i], augmentation, pixels + i * values);
  });
}

void ImageFiles::ForEach(std::span<const int32_t> samples,
                         const std::function<void(int64_t, std::vector<uint8_t>&)>& body) const {
  const int64_t count = std::ssize(samples);
  std::atomic<int64_t> next = 0;
  std::vector<std::exception_ptr> errors(count);
  const auto work = [&] {
    std::vector<uint8_t> scratch;
    for (int64_t i; (i = next++) < count;) {
      try {
        body(i, scratch);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    }
  };
  std::vector<std::thread> helpers;
  try {
    for (int64_t t = 1; t < std::min<int64_t>(threads_, count); ++t) helpers.emplace_back(work);
  } catch (const std::system_error&) {
    // The process has reached its limit of threads. Fewer helpers, or this thread alone, do all the work.
  }
  work();
  for (std::thread& helper : helpers) helper.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

bool ImageFiles::Decode(int64_t sample, const Augmentation* augmentation, uint8_t* pixels) const {
  const std::string file = path(sample);
  const absl::StatusOr<std::string> bytes = ReadFile(file);
  if (!bytes.ok()) throw TrainerError(std::string(bytes.status().message()), ErrorKind::kData);
  const absl::StatusOr<ImageSize> size = ReadImageSize(*bytes);
  if (!size.ok()) Fail(file, size.status());
  const ImagePiece piece =
      augmentation != nullptr ? DrawPiece(*augmentation, sample, *size) : MiddlePiece(*size);
  ImageRegion region = piece.region;
  const absl::StatusOr<Image> image =
      DecodeImage(*bytes, SmallestScale(std::min(region.width, region.height), side_));
  if (!image.ok()) Fail(file, image.status());
  const double scale = image->eighths / 8.0;
  region = {region.left * scale, region.top * scale, region.width * scale, region.height * scale};
  ResizeRegion(*image, region, side_, pixels);
  return piece.flip;
}

}  // namespace scalelab::trainer
