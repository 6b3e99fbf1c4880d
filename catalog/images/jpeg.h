// The JPEG part of decode.h. Internal to this room.
#pragma once

#include "catalog/images/decode.h"

namespace scalelab {

absl::StatusOr<ImageSize> ReadJpegSize(absl::string_view file);
absl::StatusOr<Image> DecodeJpeg(absl::string_view file, int eighths);

// Of an image that claims so many pixels: OK, or that they are too many to be true.
absl::Status CheckSize(const ImageSize& size);

}  // namespace scalelab
