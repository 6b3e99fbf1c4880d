// Encodes points for storage. One row per point would cost about a microsecond to insert and the same to
// read. So a row is a chunk: up to kMaxChunk consecutive points of one series, column by column. The view
// "points" shows one row per point to sqlite3 and pandas.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace scalelab::db {

// Maximum number of points in a chunk; equals the number of rows of the table "ordinal".
inline constexpr size_t kMaxChunk = 4096;
// Maximum number of lines in an event file; line numbers use the lower half of a chunk's id.
inline constexpr int64_t kMaxLine = int64_t{1} << 32;

inline int64_t ChunkId(int64_t series_id, int64_t line) { return (series_id << 32) | line; }

// Returns how many numbers to store: all, or only the first two if they form an arithmetic progression (as
// lines and steps mostly do).
size_t StoredInts(const int64_t* values, size_t count);

// Appends the `count` numbers of a stored blob to `out`. Returns false if the blob's size does not match.
bool AppendInts(const void* data, size_t bytes, size_t count, std::vector<int64_t>& out);
bool AppendDoubles(const void* data, size_t bytes, size_t count, std::vector<double>& out);

}  // namespace scalelab::db
