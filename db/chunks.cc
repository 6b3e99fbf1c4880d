#include "db/chunks.h"

#include "absl/strings/str_cat.h"
#include "db/point_codec.h"

namespace scalelab::db {
namespace {

absl::string_view View(Statement::Blob blob) { return {static_cast<const char*>(blob.data), blob.size}; }

Statement::Blob Bytes(const Frame& frame) { return {frame.bytes.data(), frame.bytes.size()}; }

}  // namespace

absl::StatusOr<ChunkHead> ReadChunk(Statement& row, const Database& db, int64_t attempt_id, Series& series) {
  ChunkHead head;
  int64_t count = 0, kind = 0;
  StoredFrame line, step, time, value;
  row.Read(head.id, count, head.axis, kind, value.base, value.shift);
  if (!row.status().ok()) return row.status();
  const size_t n = count < 0 ? 0 : static_cast<size_t>(count);
  value.bytes = View(row.BlobAt(6));
  bool sound;
  if (head.axis == 0) {
    sound = AppendDoubles(value.bytes, n, series.value) && AppendInts(View(row.BlobAt(7)), n, series.line) &&
            AppendInts(View(row.BlobAt(8)), n, series.step) &&
            AppendDoubles(View(row.BlobAt(9)), n, series.time);
  } else {
    int64_t length = 0;
    const auto frame = [&row](int at, StoredFrame& f) {
      row.ReadFrom(at, f.base, f.stride, f.shift);
      f.bytes = View(row.BlobAt(at + 3));
    };
    row.ReadFrom(10, length);
    frame(11, line);
    frame(15, step);
    frame(19, time);
    sound = length == count && DecodeDoubles(value, kind, n, series.value) &&
            DecodeInts(line, n, series.line) && DecodeInts(step, n, series.step) &&
            DecodeDoubles(time, kBits, n, series.time);
  }
  if (sound) return head;
  return Damaged(db.path(), absl::StrCat("attempt ", attempt_id, ", metric \"", series.key, "\", rank ",
                                         series.rank, ", table ", head.axis == 0 ? "" : "point_axis or ",
                                         "point_chunk, id ", head.id));
}

absl::Status InsertAxis(Database& db, int64_t id, int64_t uses, const Axis& axis) {
  const Frame line = EncodeInts(axis.line), step = EncodeInts(axis.step), time = EncodeTimes(axis.time);
  return Statement(
             db,
             "INSERT INTO point_axis (id, uses, count, line_base, line_stride, line_shift, line, step_base, "
             "step_stride, step_shift, step, time_base, time_stride, time_shift, time) "
             "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")
      .Run(id, uses, axis.line.size(), line.base, line.stride, line.shift, Bytes(line), step.base,
           step.stride, step.shift, Bytes(step), time.base, time.stride, time.shift, Bytes(time));
}

absl::StatusOr<bool> IsAxis(Database& db, int64_t id, const Axis& axis) {
  // Encoded columns can be compared, because equal columns have equal encodings.
  const Frame line = EncodeInts(axis.line), step = EncodeInts(axis.step), time = EncodeTimes(axis.time);
  Statement same(
      db,
      "SELECT count(*) FROM point_axis WHERE id = ? AND count = ? AND line_base = ? AND line_stride = ? AND "
      "line_shift = ? AND line = ? AND step_base = ? AND step_stride = ? AND step_shift = ? AND step = ? AND "
      "time_base = ? AND time_stride = ? AND time_shift = ? AND time = ?");
  same.Bind(id, axis.line.size(), line.base, line.stride, line.shift, Bytes(line), step.base, step.stride,
            step.shift, Bytes(step), time.base, time.stride, time.shift, Bytes(time));
  int64_t found = 0;
  if (same.Step()) same.Read(found);
  if (!same.status().ok()) return same.status();
  return found != 0;
}

absl::Status InsertChunk(Database& db, int64_t id, int64_t axis, std::span<const double> values) {
  int kind = 0;
  const Frame value = EncodeValues(values, kind);
  return Statement(db,
                   "INSERT INTO point_chunk (id, count, axis, kind, base, shift, value, line, step, time) "
                   "VALUES (?, ?, ?, ?, ?, ?, ?, x'', x'', x'')")
      .Run(id, values.size(), axis, kind, value.base, value.shift, Bytes(value));
}

absl::StatusOr<int64_t> NextAxisId(Database& db, int64_t attempt_id) {
  Statement last(db, "SELECT id FROM point_axis WHERE id BETWEEN ? AND ? ORDER BY id DESC LIMIT 1");
  last.Bind(FirstAxisId(attempt_id), LastAxisId(attempt_id));
  int64_t id = FirstAxisId(attempt_id);
  if (last.Step()) last.Read(id);
  if (!last.status().ok()) return last.status();
  return id + 1;
}

}  // namespace scalelab::db
