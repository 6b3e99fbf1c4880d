// Decodes image files: JPEG (baseline and progressive; gray, YCbCr, RGB, CMYK and YCCK) and PNG (all kinds).
// The format is detected from the first bytes, not from the file name. All functions are thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace scalelab {

// The size of an image in pixels.
struct ImageSize {
  int width = 0, height = 0;
};

// An image as red, green and blue of each pixel, row by row.
struct Image {
  ImageSize size;
  std::vector<uint8_t> rgb;  // 3 * width * height
  // Scale of `size` relative to the file's size, in eighths. The last row and column may be covered in part.
  int eighths = 8;
};

// Error messages are phrases about the content ("the file ends too early"); callers put the file name in
// front. A damaged file is DATA_LOSS.

// Returns the size of an image. Reads only its header.
absl::StatusOr<ImageSize> ReadImageSize(absl::string_view file);

// Decodes an image. Decodes JPEG at `eighths` / 8 of its size, rounded up, at a fraction of the cost
// (libjpeg's scaled inverse DCT), and PNG always at full size. Gray becomes three equal channels;
// transparency is ignored. Returns an error for a damaged file, even if an image viewer would display it.
absl::StatusOr<Image> DecodeImage(absl::string_view file, int eighths = 8);

// Returns the smallest number of eighths, 1 to 8, at which `from` pixels become at least `to` pixels; 8 if
// there is none.
int SmallestScale(double from, int to);

// Returns all bytes of a file. Returns INVALID_ARGUMENT with a message that names the path if the file
// cannot be read.
absl::StatusOr<std::string> ReadFile(const std::string& path);

}  // namespace scalelab
