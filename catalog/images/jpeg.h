// JPEG decoding for decode.h. Internal to this library.
#pragma once

#include "catalog/images/decode.h"

namespace scalelab {

absl::StatusOr<ImageSize> ReadJpegSize(absl::string_view file);
absl::StatusOr<Image> DecodeJpeg(absl::string_view file, int eighths);

// Returns an error if the size in an image's header is implausible.
absl::Status CheckSize(const ImageSize& size);

}  // namespace scalelab
