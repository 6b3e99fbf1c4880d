// How points lie in the database. A row a point would cost an insert of about a microsecond each and as much
// again to read, so points lie in chunks: up to kMaxChunk neighbouring points of one series in one row,
// column by column. The view "points" shows them one by one to sqlite3 and pandas.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace scalelab::db {

// Points of a chunk at most; equals the rows of the table "ordinal".
inline constexpr size_t kMaxChunk = 4096;
// Lines of an event file at most: the lower half of a chunk's id.
inline constexpr int64_t kMaxLine = int64_t{1} << 32;

inline int64_t ChunkId(int64_t series_id, int64_t line) { return (series_id << 32) | line; }

// The part of a vector that is stored: all of it, or its first two numbers if it is an arithmetic progression
// (as lines and steps mostly are). Nothing is copied.
size_t StoredInts(const int64_t* values, size_t count);

// Appends the `count` numbers of a stored blob; false when its size fits no such chunk.
bool AppendInts(const void* data, size_t bytes, size_t count, std::vector<int64_t>& out);
bool AppendDoubles(const void* data, size_t bytes, size_t count, std::vector<double>& out);

}  // namespace scalelab::db
