// A part of an image to a square of another size.
#pragma once

#include <cstdint>

#include "catalog/images/decode.h"

namespace scalelab {

// In pixels of an image, whose left upper corner is (0, 0); fractions are meant.
struct ImageRegion {
  double left = 0, top = 0, width = 0, height = 0;
};

// Writes `side` x `side` pixels, red, green and blue of each, to `out`: each the mean of the region's pixels
// that it covers, weighted by a triangle as wide as two target pixels, or two source pixels where the region
// is smaller than the square ("bilinear with antialiasing" of Pillow and of torchvision's Resize). `region`
// must lie within the image, and no pixel outside of it is looked at but for those at its border that it
// covers in part.
void ResizeRegion(const Image& image, const ImageRegion& region, int side, uint8_t* out);

}  // namespace scalelab
