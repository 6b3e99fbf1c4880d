// Generates image files for tests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "catalog/images/decode.h"

namespace scalelab {

enum class JpegKind { kColour, kProgressive, kGray, kCmyk };

// A picture of smooth gradients and waves that differ with `seed`. Compression and resizing change
// it only slightly.
Image MakePicture(int width, int height, uint32_t seed);

// Encodes the picture. Throws std::runtime_error if the library fails.
std::string EncodeJpeg(const Image& picture, JpegKind kind = JpegKind::kColour, int quality = 95);
std::string EncodePng(const Image& picture, bool gray = false, bool transparent = false);

void WriteBytes(const std::string& path, const std::string& bytes);

// Makes DIR/train/{ant,bee,cat} with `train` images each and DIR/val/{ant,bee,cat} with `val` each. Sizes and
// aspect ratios vary; every fifth is a PNG, every seventh a gray JPEG, one in eleven CMYK.
void MakeImageFolder(const std::string& dir, int train, int val);

}  // namespace scalelab
