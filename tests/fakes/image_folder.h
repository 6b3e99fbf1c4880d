// Image files made for a test.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "catalog/images/decode.h"

namespace scalelab {

enum class JpegKind { kColour, kProgressive, kGray, kCmyk };

// Smooth gradients and soft waves that differ with `seed`: what becomes of it by compression and by resizing
// is small.
Image MakePicture(int width, int height, uint32_t seed);

// The picture as a file. Throws std::runtime_error where a library refuses.
std::string EncodeJpeg(const Image& picture, JpegKind kind = JpegKind::kColour, int quality = 95);
std::string EncodePng(const Image& picture, bool gray = false, bool transparent = false);

void WriteBytes(const std::string& path, const std::string& bytes);

// DIR/train/{ant,bee,cat} with `train` images each and DIR/val/{ant,bee,cat} with `val` each: sizes and
// aspect ratios vary, every fifth is a PNG, every seventh a gray JPEG, one in eleven CMYK.
void MakeImageFolder(const std::string& dir, int train, int val);

}  // namespace scalelab
