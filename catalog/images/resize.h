// Resizes a region of an image to a square.
#pragma once

#include <cstdint>

#include "catalog/images/decode.h"

namespace scalelab {

// A rectangle of an image, in pixels; (0, 0) is the upper left corner of the image. Fractions are allowed.
struct ImageRegion {
  double left = 0, top = 0, width = 0, height = 0;
};

// Writes `side` x `side` pixels, each as red, green and blue, to `out`. A target pixel is the weighted mean
// of source pixels around it. The weights form a triangle whose base spans two target pixels, or two source
// pixels where the region is smaller than the square ("bilinear with antialiasing" of Pillow and of
// torchvision's Resize). `region` must lie within the image. Pixels outside of it are not read, except those
// that its border covers in part.
void ResizeRegion(const Image& image, const ImageRegion& region, int side, uint8_t* out);

}  // namespace scalelab
