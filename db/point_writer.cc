#include "db/point_writer.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "absl/strings/str_cat.h"
#include "db/point_codec.h"
#include "db/sqlite/return_if_error.h"

namespace scalelab::db {
namespace {

// Maximum number of cached ids; a cache is cleared when it is full.
constexpr size_t kMaxRemembered = 1 << 16;
// The chunks of a running attempt are merged after this number of appends.
constexpr int64_t kAppendsPerMerge = 1024;
// Number of earlier columns of a part with which a column is compared, to find one with equal lines,
// steps and times.
constexpr size_t kMaxAxesCompared = 8;

absl::Status CheckColumn(const StreamAppend& append, const PointColumn& column) {
  const size_t count = column.line.size();
  const auto refuse = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("Metric \"", column.key, "\" of attempt ",
                                                   append.attempt_id, " rank ", append.rank, " ", what));
  };
  if (column.step.size() != count || column.time.size() != count || column.value.size() != count) {
    return refuse("has columns of different lengths");
  }
  for (size_t i = 0; i < count; ++i) {
    if (column.line[i] < 0 || column.line[i] >= kMaxLine)
      return refuse(absl::StrCat("has line ", column.line[i]));
    if (i > 0 && column.line[i] <= column.line[i - 1])
      return refuse("has lines that are not in increasing order");
  }
  return absl::OkStatus();
}

bool SameAxis(const PointColumn& a, const PointColumn& b) {
  return a.line == b.line && a.step == b.step &&
         std::memcmp(a.time.data(), b.time.data(), a.time.size() * sizeof(double)) == 0;
}

// Columns of one part that share an axis.
struct Group {
  std::vector<const PointColumn*> columns;
};

std::vector<Group> GroupByAxis(const std::vector<PointColumn>& columns) {
  std::vector<Group> groups;
  for (const PointColumn& column : columns) {
    if (column.line.empty()) continue;
    const auto first = groups.end() - std::min<ptrdiff_t>(std::ssize(groups), kMaxAxesCompared);
    const auto same =
        std::find_if(first, groups.end(), [&](const Group& g) { return SameAxis(*g.columns[0], column); });
    Group& group = same == groups.end() ? groups.emplace_back() : *same;
    group.columns.push_back(&column);
  }
  return groups;
}

}  // namespace

absl::Status PointWriter::Append(const StreamAppend& append) {
  for (const PointColumn& column : append.columns) SCALELAB_RETURN_IF_ERROR(CheckColumn(append, column));
  const std::vector<Group> groups = GroupByAxis(append.columns);
  for (const Group& group : groups) {
    absl::StatusOr<AxisIds> axes =
        AppendAxis(append.attempt_id, *group.columns[0], std::ssize(group.columns));
    if (!axes.ok()) return axes.status();
    for (const PointColumn* column : group.columns) {
      absl::StatusOr<int64_t> key = KeyId(column->key);
      if (!key.ok()) return key.status();
      absl::StatusOr<int64_t> series = SeriesId({append.attempt_id, *key, append.rank});
      if (!series.ok()) return series.status();
      SCALELAB_RETURN_IF_ERROR(AppendValues(*series, *column, *axes));
    }
  }
  return groups.empty() ? absl::OkStatus() : CountAppend(append);
}

absl::StatusOr<PointWriter::AxisIds> PointWriter::AppendAxis(int64_t attempt_id, const PointColumn& column,
                                                             int64_t uses) {
  AxisIds ids;
  for (size_t begin = 0; begin < column.line.size(); begin += kMaxChunk) {
    const size_t count = std::min(kMaxChunk, column.line.size() - begin);
    const absl::StatusOr<int64_t> id = TakeAxisId(attempt_id);
    if (!id.ok()) return id.status();
    SCALELAB_RETURN_IF_ERROR(InsertAxis(db_, *id, uses,
                                        {{column.line.data() + begin, count},
                                         {column.step.data() + begin, count},
                                         {column.time.data() + begin, count}}));
    ids.push_back(*id);
  }
  return ids;
}

absl::Status PointWriter::AppendValues(int64_t series, const PointColumn& column, const AxisIds& axes) {
  for (size_t begin = 0; begin < column.line.size(); begin += kMaxChunk) {
    const size_t count = std::min(kMaxChunk, column.line.size() - begin);
    SCALELAB_RETURN_IF_ERROR(InsertChunk(db_, ChunkId(series, column.line[begin]), axes[begin / kMaxChunk],
                                         {column.value.data() + begin, count}));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> PointWriter::TakeAxisId(int64_t attempt_id) {
  if (auto it = next_axis_.find(attempt_id); it != next_axis_.end()) return it->second++;
  const absl::StatusOr<int64_t> id = NextAxisId(db_, attempt_id);
  if (!id.ok()) return id;
  if (next_axis_.size() >= kMaxRemembered) next_axis_.clear();
  next_axis_[attempt_id] = *id + 1;
  return id;
}

absl::StatusOr<int64_t> MetricKeyId(Database& db, const std::string& name) {
  SCALELAB_RETURN_IF_ERROR(
      Statement(db, "INSERT INTO metric_key (name) VALUES (?) ON CONFLICT (name) DO NOTHING").Run(name));
  Statement find(db, "SELECT id FROM metric_key WHERE name = ?");
  find.Bind(name);
  int64_t id = 0;
  if (find.Step()) find.Read(id);
  SCALELAB_RETURN_IF_ERROR(find.status());
  return id;
}

absl::StatusOr<int64_t> PointWriter::KeyId(const std::string& name) {
  if (auto it = key_ids_.find(name); it != key_ids_.end()) return it->second;
  const absl::StatusOr<int64_t> id = MetricKeyId(db_, name);
  if (!id.ok()) return id;
  if (key_ids_.size() >= kMaxRemembered) key_ids_.clear();
  key_ids_[name] = *id;
  return id;
}

absl::StatusOr<int64_t> PointWriter::SeriesId(const SeriesKey& key) {
  if (auto it = series_ids_.find(key); it != series_ids_.end()) return it->second;
  SCALELAB_RETURN_IF_ERROR(Statement(db_,
                                     "INSERT INTO series (attempt_id, key_id, rank) VALUES (?, ?, ?) "
                                     "ON CONFLICT (attempt_id, key_id, rank) DO NOTHING")
                               .Run(key.attempt_id, key.key_id, key.rank));
  Statement find(db_, "SELECT id FROM series WHERE attempt_id = ? AND key_id = ? AND rank = ?");
  find.Bind(key.attempt_id, key.key_id, key.rank);
  int64_t id = 0;
  if (find.Step()) find.Read(id);
  SCALELAB_RETURN_IF_ERROR(find.status());
  if (series_ids_.size() >= kMaxRemembered) series_ids_.clear();
  series_ids_[key] = id;
  return id;
}

absl::Status PointWriter::CountAppend(const StreamAppend& append) {
  if (appends_.size() >= kMaxRemembered) appends_.clear();
  int64_t& appends = appends_[append.attempt_id];
  if (++appends < kAppendsPerMerge) return absl::OkStatus();
  appends = 0;
  return Statement(db_,
                   "INSERT INTO merge_task (attempt_id, series_id, chunk_id, ended) VALUES (?, 0, 0, 0) "
                   "ON CONFLICT (attempt_id) DO NOTHING")
      .Run(append.attempt_id);
}

absl::Status PointWriter::AttemptEnded(int64_t attempt_id) {
  appends_.erase(attempt_id);
  Statement any(db_, "SELECT 1 FROM series WHERE attempt_id = ? LIMIT 1");
  any.Bind(attempt_id);
  if (!any.Step()) return any.status();
  any.Reset();
  return Statement(db_,
                   "INSERT INTO merge_task (attempt_id, series_id, chunk_id, ended) VALUES (?, 0, 0, 1) "
                   "ON CONFLICT (attempt_id) DO UPDATE SET series_id = 0, chunk_id = 0, ended = 1")
      .Run(attempt_id);
}

void PointWriter::Forget() {
  key_ids_.clear();
  series_ids_.clear();
  next_axis_.clear();
  merged_axes_.clear();
}

}  // namespace scalelab::db
