// Image files to pixels: JPEG (baseline and progressive; gray, YCbCr, RGB, CMYK and YCCK) and PNG (any kind),
// told apart by their first bytes, whatever their names. All functions may be called by any number of threads
// at once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace scalelab {

// In pixels.
struct ImageSize {
  int width = 0, height = 0;
};

// Red, green and blue of each pixel, row by row.
struct Image {
  ImageSize size;
  std::vector<uint8_t> rgb;  // 3 * width * height
  int eighths = 8;           // of the file's own size; a last pixel may be covered in part only
};

// Errors of all three are words about the content ("the file ends too early"), to be put behind the file's
// name.

// Size by the header alone.
absl::StatusOr<ImageSize> ReadImageSize(absl::string_view file);

// JPEG is decoded at `eighths` / 8 of its size, rounded up, at a part of the cost (libjpeg's scaled inverse
// DCT); PNG always as it is. Gray becomes three equal channels, transparency is passed over. What is damaged
// is an error, also where a viewer would show something.
absl::StatusOr<Image> DecodeImage(absl::string_view file, int eighths = 8);

// The smallest number of eighths, 1 to 8, at which `from` pixels are not fewer than `to`; 8 where they are
// anyway.
int SmallestScale(double from, int to);

// All bytes of a file. INVALID_ARGUMENT is one sentence with the path.
absl::StatusOr<std::string> ReadFile(const std::string& path);

}  // namespace scalelab
