// Encodes doubles in blocks, each with a parabola of its own. It needs less space than one frame (point_codec.h) for
// numbers that change steadily, that have both signs, or that contain a few zeros or NaN.
//
// A block has up to kBlock numbers. It is a parabola and the distances from it, all with the same number of bits (LeCo:
// Liu, Zeng and Zhang 2024). Number j of a block is
//
//   base + j * stride + j * (j - 1) / 2 * curve + (r[j] << shift)
//
// It is either a whole number to multiply by a power of two, or the folded bits of the double: the magnitude and then the
// sign, so that numbers near each other have bits near each other. All encodings are exact, and plain SQL can decode
// single numbers: no sum with 64-bit integers overflows.
//
// The blob begins with a header of kHeader bytes for each block, little-endian:
//
//   base, stride, curve   8 bytes each
//   place                 2 bytes: where r begins in the blob
//   scale                 2 bytes: 0 for folded bits, else the exponent of the power of two + kScaleOffset
//   width, shift          1 byte each: the number of bits of each r[j], 0 to 56 or 64; and its shift
//
// After the headers, r[j] are consecutive bits, lowest first, from the first bit of a byte.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace scalelab::db {

inline constexpr size_t kBlock = 64, kHeader = 30;
inline constexpr int kScaleOffset = 2048;

// Encodes at most kMaxChunk doubles. Returns nothing if the blob would take more than `limit` bytes, or if a sample of
// the blocks predicts that.
std::optional<std::string> EncodeBlocks(std::span<const double> values, size_t limit);

// Appends `count` numbers to `out`. Returns false, with `out` unchanged, if the blob is damaged.
bool DecodeBlocks(absl::string_view blob, size_t count, std::vector<double>& out);

}  // namespace scalelab::db
