// Merges small chunks. A stream that is reported every half second leaves a chunk of a few points for each metric,
// whose row costs more than its points.
#include <algorithm>

#include "db/point_codec.h"
#include "db/point_writer.h"
#include "db/sqlite/return_if_error.h"
#include "planted/bug.h"

namespace scalelab::db {
namespace {

// Maximum number of chunks that one transaction reads, which takes some milliseconds.
constexpr int64_t kRowsPerMerge = 1000;
// Minimum number of chunks that are merged into one while their attempt still runs. It prevents that the same
// points are rewritten many times.
constexpr size_t kChunksWhileRunning = 64;
constexpr size_t kMaxRememberedAttempts = 1 << 16;

}  // namespace

absl::StatusOr<bool> PointWriter::MergeSome() {
  MergeTask task;
  {
    Statement next(
        db_, "SELECT attempt_id, series_id, chunk_id, ended FROM merge_task ORDER BY attempt_id LIMIT 1");
    const bool found = next.Step();
    if (found) next.Read(task.attempt_id, task.series_id, task.chunk_id, task.ended);
    SCALELAB_RETURN_IF_ERROR(next.status());
    if (!found) return false;
  }
  if (merged_attempt_ != task.attempt_id) merged_axes_.clear();
  merged_attempt_ = task.attempt_id;

  int64_t budget = kRowsPerMerge;
  while (budget > 0) {
    int rank = 0;
    int64_t series_id = 0;
    {
      Statement next(db_, "SELECT id, rank FROM series WHERE attempt_id = ? AND id >= ? ORDER BY id LIMIT 1");
      next.Bind(task.attempt_id, task.series_id);
      const bool found = next.Step();
      if (found) next.Read(series_id, rank);
      SCALELAB_RETURN_IF_ERROR(next.status());
      if (!found) {
        SCALELAB_RETURN_IF_ERROR(
            Statement(db_, "DELETE FROM merge_task WHERE attempt_id = ?").Run(task.attempt_id));
        return true;  // there may be another attempt
      }
    }
    if (series_id != task.series_id) task.chunk_id = ChunkId(series_id, 0);
    task.series_id = series_id;
    --budget;
    const absl::StatusOr<bool> more = MergeSeries(task, rank, budget);
    if (!more.ok()) return more;
    if (!*more) task.chunk_id = ChunkId(++task.series_id, 0);
  }
  SCALELAB_RETURN_IF_ERROR(
      Statement(db_, "UPDATE merge_task SET series_id = ?, chunk_id = ? WHERE attempt_id = ?")
          .Run(task.series_id, task.chunk_id, task.attempt_id));
  return true;
}

absl::StatusOr<bool> PointWriter::MergeSeries(MergeTask& task, int rank, int64_t& budget) {
  const size_t fewest = task.ended ? 2 : kChunksWhileRunning;
  while (budget > 0) {
    // Gather chunks until they fill one.
    std::vector<SmallChunk> small;
    Series points;
    int64_t next_id = 0;
    {
      Statement heads(db_, "SELECT id, count, axis FROM point_chunk WHERE id BETWEEN ? AND ? ORDER BY id");
      heads.Bind(task.chunk_id, ChunkId(task.series_id, kMaxLine - 1));
      size_t total = 0;
      while (heads.Step()) {
        size_t count = 0;
        SmallChunk chunk{};
        heads.Read(chunk.id, count, chunk.axis);
        if (!heads.status().ok()) return heads.status();
        next_id = chunk.id;
        --budget;
        if (total + count > kMaxChunk && !small.empty()) break;
        next_id = 0;
        total += count;
        small.push_back(chunk);
      }
      SCALELAB_RETURN_IF_ERROR(heads.status());
    }
    if (small.size() >= fewest) {
      Statement rows(db_, kSelectChunks);
      rows.Bind(small.front().id, small.back().id - (Planted(Bug::kMergeLosesChunk) ? 1 : 0));
      while (rows.Step()) {
        const absl::StatusOr<ChunkHead> head = ReadChunk(rows, db_, task.attempt_id, points);
        if (!head.ok()) return head.status();
      }
      SCALELAB_RETURN_IF_ERROR(rows.status());
      rows.Reset();
      SCALELAB_RETURN_IF_ERROR(Rewrite(task.attempt_id, rank, small, points));
    }
    if (next_id == 0) return false;
    task.chunk_id = next_id;
  }
  return true;
}

absl::Status PointWriter::Rewrite(int64_t attempt_id, int rank, const std::vector<SmallChunk>& old,
                                  const Series& points) {
  SCALELAB_RETURN_IF_ERROR(
      Statement(db_, "DELETE FROM point_chunk WHERE id BETWEEN ? AND ?").Run(old.front().id, old.back().id));
  const Axis axis{points.line, points.step, points.time};
  const absl::StatusOr<int64_t> axis_id = SharedAxis(attempt_id, rank, axis);
  if (!axis_id.ok()) return axis_id.status();
  SCALELAB_RETURN_IF_ERROR(InsertChunk(db_, old.front().id, *axis_id, points.value));
  for (const SmallChunk& chunk : old) {
    if (chunk.axis != 0) SCALELAB_RETURN_IF_ERROR(ReleaseAxis(chunk.axis));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> PointWriter::SharedAxis(int64_t attempt_id, int rank, const Axis& axis) {
  const std::pair<int, int64_t> place(rank, axis.line.front());
  if (const auto it = merged_axes_.find(place); it != merged_axes_.end()) {
    const absl::StatusOr<bool> same = IsAxis(db_, it->second, axis);
    if (!same.ok()) return same.status();
    if (*same) {
      SCALELAB_RETURN_IF_ERROR(
          Statement(db_, "UPDATE point_axis SET uses = uses + 1 WHERE id = ?").Run(it->second));
      return it->second;
    }
  }
  const absl::StatusOr<int64_t> id = TakeAxisId(attempt_id);
  if (!id.ok()) return id;
  SCALELAB_RETURN_IF_ERROR(InsertAxis(db_, *id, 1, axis));
  if (merged_axes_.size() >= kMaxRememberedAttempts) merged_axes_.clear();
  merged_axes_[place] = *id;
  return id;
}

absl::Status PointWriter::ReleaseAxis(int64_t id) {
  SCALELAB_RETURN_IF_ERROR(Statement(db_, "UPDATE point_axis SET uses = uses - 1 WHERE id = ?").Run(id));
  return Statement(db_, "DELETE FROM point_axis WHERE id = ? AND uses <= 0").Run(id);
}

}  // namespace scalelab::db
