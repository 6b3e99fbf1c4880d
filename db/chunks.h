// Rows of point_chunk and point_axis: encoded points of a series, and the lines, steps and times of its points, which
// the metrics of one event share.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "db/records.h"
#include "db/sqlite/sqlite.h"
#include "db/store.h"

namespace scalelab::db {

// Selects the columns that ReadChunk reads, from the chunks whose ids are in a range (two parameters), in the order of the ids.
inline constexpr char kSelectChunks[] =
    "SELECT c.id, c.count, c.axis, c.kind, c.base, c.shift, c.value, c.line, c.step, c.time, x.count, "
    "x.line_base, "
    "x.line_stride, x.line_shift, x.line, x.step_base, x.step_stride, x.step_shift, x.step, x.time_base, "
    "x.time_stride, "
    "x.time_shift, x.time FROM point_chunk c LEFT JOIN point_axis x ON x.id = c.axis WHERE c.id BETWEEN ? "
    "AND ? "
    "ORDER BY c.id";

struct ChunkHead {
  int64_t id = 0, axis = 0;
};

// Appends the points of the current row of kSelectChunks to `series`. Returns DATA_LOSS if the row is
// damaged; the message contains `attempt_id`.
absl::StatusOr<ChunkHead> ReadChunk(Statement& row, const Database& db, int64_t attempt_id, Series& series);

// Lines, steps and times of at most kMaxChunk points.
struct Axis {
  std::span<const int64_t> line, step;
  std::span<const double> time;
};

// Inserts an axis that `uses` chunks will refer to.
absl::Status InsertAxis(Database& db, int64_t id, int64_t uses, const Axis& axis);
// Returns whether the axis `id` exists and equals `axis`.
absl::StatusOr<bool> IsAxis(Database& db, int64_t id, const Axis& axis);
absl::Status InsertChunk(Database& db, int64_t id, int64_t axis, std::span<const double> values);

// Returns the id for the next axis of an attempt, one more than the largest id of its axes. The ids of its axes
// are attempt_id * 2^32 + 1, attempt_id * 2^32 + 2 and so on.
absl::StatusOr<int64_t> NextAxisId(Database& db, int64_t attempt_id);
inline int64_t FirstAxisId(int64_t attempt_id) { return attempt_id << 32; }
inline int64_t LastAxisId(int64_t attempt_id) { return (attempt_id << 32) | 0xffffffff; }

}  // namespace scalelab::db
