// Encodes points for storage. One row per point would cost about a microsecond to insert and the same to read. So a
// row is a chunk: up to kMaxChunk consecutive points of one series, as columns. The view "points" shows one row per
// point to sqlite3 and pandas.
//
// A column is stored as a frame: a straight line and the distances from it, all with the same number of bytes
// (frame of reference: Goldstein, Ramakrishnan and Shaft 1998). Number i is
//
//   base + i * stride + (r[i] << shift)
//
// where r is an array of unsigned little-endian integers of 0 to 8 bytes. Lines and steps are mostly straight and
// need no bytes at all; times need 2 to 4; a float that was stored as a double needs 3 or 4, because its last bits
// are 0. Numbers with few decimals, such as durations in nanoseconds, are stored as integers and a power of ten
// (ALP: Afroozeh, Kuffo and Boncz 2023). All encodings are exact, and plain SQL can decode single numbers.
//
// Doubles that would need four bytes or more are stored in blocks (block_codec.h) if that is shorter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace scalelab::db {

// Maximum number of points in a chunk; equals the number of rows of the table "ordinal".
inline constexpr size_t kMaxChunk = 4096;
// Maximum number of lines in an event file; line numbers use the lower half of a chunk's id.
inline constexpr int64_t kMaxLine = int64_t{1} << 32;

inline int64_t ChunkId(int64_t series_id, int64_t line) { return (series_id << 32) | line; }

struct Frame {
  int64_t base = 0, stride = 0;
  int shift = 0;
  std::string bytes;  // r
};

// What the numbers of a frame of doubles are: their bits, or integers to divide by 10^(kind - kDecimal).
// With kBlocks, the bytes of the frame are a blob of block_codec.h, and its other fields are 0.
inline constexpr int kBits = 1, kDecimal = 2, kBlocks = kDecimal + 10, kMaxKind = kBlocks;

// A frame as it was read from the database. It may be damaged, so decoding checks it.
struct StoredFrame {
  int64_t base = 0, stride = 0, shift = 0;
  absl::string_view bytes;
};

// Encode integers that increase steadily, and times.
Frame EncodeInts(std::span<const int64_t> values);
Frame EncodeTimes(std::span<const double> values);
// Encodes any doubles and sets `kind`.
Frame EncodeValues(std::span<const double> values, int& kind);

// Append the `count` numbers of a frame to `out`. Return false, with `out` unchanged, if the frame is damaged.
bool DecodeInts(const StoredFrame& frame, size_t count, std::vector<int64_t>& out);
bool DecodeDoubles(const StoredFrame& frame, int64_t kind, size_t count, std::vector<double>& out);

// Decode the columns of older databases: arrays of 64-bit numbers, of which integers may be only the first two terms
// of an arithmetic progression. Append `count` numbers to `out`, or return false with `out` unchanged.
bool AppendInts(absl::string_view bytes, size_t count, std::vector<int64_t>& out);
bool AppendDoubles(absl::string_view bytes, size_t count, std::vector<double>& out);

}  // namespace scalelab::db
