// Writes the points of appended parts of event files, and merges small chunks into larger ones.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "db/chunks.h"
#include "db/records.h"
#include "db/sqlite/sqlite.h"

namespace scalelab::db {

// Returns the id of a metric. Adds the metric if it is new, inside the caller's transaction.
absl::StatusOr<int64_t> MetricKeyId(Database& db, const std::string& name);

// Not thread-safe. All methods run inside the caller's transaction.
class PointWriter {
 public:
  explicit PointWriter(Database& db) : db_(db) {}

  // Inserts the points of `append`. Returns INVALID_ARGUMENT if a column is malformed.
  absl::Status Append(const StreamAppend& append);
  // Requests that the chunks of an attempt that has ended are merged.
  absl::Status AttemptEnded(int64_t attempt_id);
  // Merges small chunks of one attempt, at most some thousand rows. Returns whether more is left to do.
  absl::StatusOr<bool> MergeSome();
  // Clears the cached ids. Must be called after a rollback, and after rows were deleted.
  void Forget();

 private:
  struct SeriesKey {
    int64_t attempt_id;
    int64_t key_id;
    int rank;
    bool operator==(const SeriesKey&) const = default;
    template <class H>
    friend H AbslHashValue(H h, const SeriesKey& k) {
      return H::combine(std::move(h), k.attempt_id, k.key_id, k.rank);
    }
  };
  struct MergeTask {
    int64_t attempt_id = 0, series_id = 0, chunk_id = 0;  // where the merge continues
    bool ended = false;
  };
  struct SmallChunk {
    int64_t id, axis;
  };
  using AxisIds = std::vector<int64_t>;

  absl::StatusOr<AxisIds> AppendAxis(int64_t attempt_id, const PointColumn& column, int64_t uses);
  absl::Status AppendValues(int64_t series, const PointColumn& column, const AxisIds& axes);
  absl::StatusOr<int64_t> KeyId(const std::string& name);
  absl::StatusOr<int64_t> SeriesId(const SeriesKey& key);
  absl::StatusOr<int64_t> TakeAxisId(int64_t attempt_id);
  absl::Status CountAppend(const StreamAppend& append);

  // Merge chunks of one series from `task.chunk_id` on and subtract the rows from `budget`. Returns whether the
  // series has more.
  absl::StatusOr<bool> MergeSeries(MergeTask& task, int rank, int64_t& budget);
  absl::Status Rewrite(int64_t attempt_id, int rank, const std::vector<SmallChunk>& old,
                       const Series& points);
  absl::StatusOr<int64_t> SharedAxis(int64_t attempt_id, int rank, const Axis& axis);
  absl::Status ReleaseAxis(int64_t id);

  Database& db_;
  // Caches of rows of the database.
  absl::flat_hash_map<std::string, int64_t> key_ids_;
  absl::flat_hash_map<SeriesKey, int64_t> series_ids_;
  absl::flat_hash_map<int64_t, int64_t> next_axis_;  // by attempt
  // Axes of merged chunks by rank and first line. The other metrics of the same events use the same axes.
  std::map<std::pair<int, int64_t>, int64_t> merged_axes_;
  int64_t merged_attempt_ = 0;  // of merged_axes_
  // Number of appends by attempt since the start, or since a merge was requested.
  absl::flat_hash_map<int64_t, int64_t> appends_;
};

}  // namespace scalelab::db
