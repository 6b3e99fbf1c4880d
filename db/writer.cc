#include "db/writer.h"

#include <algorithm>
#include <span>

#include "absl/strings/str_cat.h"
#include "db/columns.h"
#include "db/point_codec.h"
#include "db/stream.h"

#define SCALELAB_RETURN_IF_ERROR(expression) \
  if (absl::Status status_ = (expression); !status_.ok()) return status_

namespace scalelab::db {
namespace {

// A checkpoint copies each changed page once, however often it was written, but delays the commit that runs
// it. 4,096 pages are 16 MiB: some tens of milliseconds, once in hundreds of small commits. The WAL is then
// overwritten from its start, so fsync need not record a growing file.
constexpr int kCheckpointPages = 4096;
// Maximum number of cached ids; the cache is cleared when it is full.
constexpr size_t kMaxRemembered = 1 << 16;

template <class Row>
absl::Status PutAll(Database& db, const std::vector<Row>& rows) {
  if (rows.empty()) return absl::OkStatus();
  Statement upsert(db, UpsertSql<Row>());
  for (const Row& row : rows) SCALELAB_RETURN_IF_ERROR(Put(upsert, row));
  return absl::OkStatus();
}

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

}  // namespace

absl::Status Writer::Commit(const WriteBatch& batch) {
  absl::MutexLock lock(&mutex_);
  if (batch.empty()) return absl::OkStatus();
  absl::Status status;
  {
    Transaction transaction(*db_, Transaction::Kind::kWrite);
    status = transaction.status();
    if (status.ok()) status = Write(batch);
    if (status.ok()) status = transaction.Commit();
  }
  if (!status.ok()) {
    key_ids_.clear();
    series_ids_.clear();
    counters_.clear();
    return status;
  }
  if (db_->wal_pages() >= kCheckpointPages) Checkpoint();
  return absl::OkStatus();
}

void Writer::Checkpoint() {
  // PASSIVE does not wait for readers; the next checkpoint copies what this one could not. Failure only lets
  // the WAL grow.
  sqlite3_wal_checkpoint_v2(db_->handle(), nullptr, SQLITE_CHECKPOINT_PASSIVE, nullptr, nullptr);
  db_->reset_wal_pages();
}

absl::Status Writer::Write(const WriteBatch& batch) {
  SCALELAB_RETURN_IF_ERROR(PutAll(*db_, batch.studies));
  SCALELAB_RETURN_IF_ERROR(PutAll(*db_, batch.cells));
  SCALELAB_RETURN_IF_ERROR(PutRuns(batch.runs));
  SCALELAB_RETURN_IF_ERROR(PutAll(*db_, batch.allocations));
  SCALELAB_RETURN_IF_ERROR(PutAll(*db_, batch.attempts));
  SCALELAB_RETURN_IF_ERROR(PutAll(*db_, batch.provenance));
  for (const StreamAppend& append : batch.appends) SCALELAB_RETURN_IF_ERROR(Append(append));
  SCALELAB_RETURN_IF_ERROR(PutAll(*db_, batch.epochs));
  SCALELAB_RETURN_IF_ERROR(PutSummaries(batch.summaries));
  for (int64_t id : batch.deleted_studies) SCALELAB_RETURN_IF_ERROR(DeleteStudy(id));
  return RaiseCounters(batch);
}

absl::Status Writer::PutRuns(const std::vector<RunRow>& runs) {
  SCALELAB_RETURN_IF_ERROR(PutAll(*db_, runs));
  std::map<int64_t, std::pair<int64_t, int64_t>> ranges;  // by study: smallest and largest id
  for (const RunRow& run : runs) {
    auto [it, added] = ranges.try_emplace(run.study_id, run.id, run.id);
    it->second.first = std::min(it->second.first, run.id);
    it->second.second = std::max(it->second.second, run.id);
  }
  Statement widen(
      *db_,
      "UPDATE study SET first_run_id = iif(last_run_id < first_run_id, ?2, min(first_run_id, ?2)), "
      "last_run_id = max(last_run_id, ?3) WHERE id = ?1 AND (last_run_id < first_run_id OR "
      "first_run_id > ?2 OR last_run_id < ?3)");
  for (const auto& [study, range] : ranges) {
    SCALELAB_RETURN_IF_ERROR(widen.Run(study, range.first, range.second));
  }
  return absl::OkStatus();
}

absl::Status Writer::PutSummaries(const std::vector<RunSummary>& summaries) {
  SCALELAB_RETURN_IF_ERROR(PutAll(*db_, summaries));
  Statement put(*db_,
                "INSERT INTO run_metrics (run_id, metrics) VALUES (?, ?) "
                "ON CONFLICT (run_id) DO UPDATE SET metrics = excluded.metrics");
  for (const RunSummary& summary : summaries)
    SCALELAB_RETURN_IF_ERROR(put.Run(summary.run_id, summary.metrics));
  return absl::OkStatus();
}

absl::Status Writer::Append(const StreamAppend& append) {
  static const std::string find = SelectSql<StreamRow>("WHERE attempt_id = ? AND rank = ?");
  StreamRow stream;
  stream.attempt_id = append.attempt_id;
  stream.rank = append.rank;
  Statement select(*db_, find.c_str());
  select.Bind(append.attempt_id, append.rank);
  if (select.Step()) stream = ReadRow<StreamRow>(select);
  SCALELAB_RETURN_IF_ERROR(select.status());
  select.Reset();
  if (append.begin_position != stream.position) {
    return absl::FailedPreconditionError(
        absl::StrCat("Events of attempt ", append.attempt_id, " rank ", append.rank, " start at byte ",
                     append.begin_position, ", but ", stream.position, " is next; send from there"));
  }
  if (append.end_position < append.begin_position) {
    return absl::InvalidArgumentError(absl::StrCat("Events of attempt ", append.attempt_id, " rank ",
                                                   append.rank, " end at byte ", append.end_position,
                                                   " before they start"));
  }

  Apply(stream, append);
  Statement upsert(*db_, UpsertSql<StreamRow>());
  SCALELAB_RETURN_IF_ERROR(Put(upsert, stream));
  for (const PointColumn& column : append.columns) SCALELAB_RETURN_IF_ERROR(AppendColumn(append, column));
  return absl::OkStatus();
}

absl::Status Writer::AppendColumn(const StreamAppend& append, const PointColumn& column) {
  SCALELAB_RETURN_IF_ERROR(CheckColumn(append, column));
  if (column.line.empty()) return absl::OkStatus();
  absl::StatusOr<int64_t> key = KeyId(column.key);
  if (!key.ok()) return key.status();
  absl::StatusOr<int64_t> series = SeriesId({append.attempt_id, *key, append.rank});
  if (!series.ok()) return series.status();

  Statement insert(*db_,
                   "INSERT INTO point_chunk (id, count, line, step, time, value) VALUES (?, ?, ?, ?, ?, ?)");
  for (size_t begin = 0; begin < column.line.size(); begin += kMaxChunk) {
    const size_t count = std::min(kMaxChunk, column.line.size() - begin);
    const auto ints = [&](const std::vector<int64_t>& v) {
      return Statement::Blob{v.data() + begin, sizeof(int64_t) * StoredInts(v.data() + begin, count)};
    };
    const auto doubles = [&](const std::vector<double>& v) {
      return Statement::Blob{v.data() + begin, sizeof(double) * count};
    };
    SCALELAB_RETURN_IF_ERROR(insert.Run(ChunkId(*series, column.line[begin]), count, ints(column.line),
                                        ints(column.step), doubles(column.time), doubles(column.value)));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Writer::KeyId(const std::string& name) {
  if (auto it = key_ids_.find(name); it != key_ids_.end()) return it->second;
  SCALELAB_RETURN_IF_ERROR(
      Statement(*db_, "INSERT INTO metric_key (name) VALUES (?) ON CONFLICT (name) DO NOTHING").Run(name));
  Statement find(*db_, "SELECT id FROM metric_key WHERE name = ?");
  find.Bind(name);
  int64_t id = 0;
  if (find.Step()) find.Read(id);
  SCALELAB_RETURN_IF_ERROR(find.status());
  if (key_ids_.size() >= kMaxRemembered) key_ids_.clear();
  key_ids_[name] = id;
  return id;
}

absl::StatusOr<int64_t> Writer::SeriesId(const SeriesKey& key) {
  if (auto it = series_ids_.find(key); it != series_ids_.end()) return it->second;
  SCALELAB_RETURN_IF_ERROR(Statement(*db_,
                                     "INSERT INTO series (attempt_id, key_id, rank) VALUES (?, ?, ?) "
                                     "ON CONFLICT (attempt_id, key_id, rank) DO NOTHING")
                               .Run(key.attempt_id, key.key_id, key.rank));
  Statement find(*db_, "SELECT id FROM series WHERE attempt_id = ? AND key_id = ? AND rank = ?");
  find.Bind(key.attempt_id, key.key_id, key.rank);
  int64_t id = 0;
  if (find.Step()) find.Read(id);
  SCALELAB_RETURN_IF_ERROR(find.status());
  if (series_ids_.size() >= kMaxRemembered) series_ids_.clear();
  series_ids_[key] = id;
  return id;
}

absl::Status Writer::DeleteStudy(int64_t id) {
  // The chunks of a series are a range of ids.
  {
    Statement series(
        *db_,
        "SELECT e.id FROM run r JOIN attempt a ON a.run_id = r.id JOIN series e ON e.attempt_id = a.id "
        "WHERE r.study_id = ?");
    Statement chunks(*db_, "DELETE FROM point_chunk WHERE id BETWEEN ? AND ?");
    series.Bind(id);
    while (series.Step()) {
      int64_t series_id = 0;
      series.Read(series_id);
      SCALELAB_RETURN_IF_ERROR(chunks.Run(ChunkId(series_id, 0), ChunkId(series_id, kMaxLine - 1)));
    }
    SCALELAB_RETURN_IF_ERROR(series.status());
  }
#define OF_ITS_ATTEMPTS \
  " WHERE attempt_id IN (SELECT a.id FROM run r JOIN attempt a ON a.run_id = r.id WHERE r.study_id = ?)"
#define OF_ITS_RUNS " WHERE run_id IN (SELECT id FROM run WHERE study_id = ?)"
  static constexpr const char* kDeletes[] = {
      "DELETE FROM series" OF_ITS_ATTEMPTS,  "DELETE FROM stream" OF_ITS_ATTEMPTS,
      "DELETE FROM epoch" OF_ITS_ATTEMPTS,   "DELETE FROM provenance" OF_ITS_ATTEMPTS,
      "DELETE FROM attempt" OF_ITS_RUNS,     "DELETE FROM run_summary" OF_ITS_RUNS,
      "DELETE FROM run_metrics" OF_ITS_RUNS, "DELETE FROM allocation WHERE study_id = ?",
      "DELETE FROM run WHERE study_id = ?",  "DELETE FROM cell WHERE study_id = ?",
      "DELETE FROM study WHERE id = ?"};
#undef OF_ITS_ATTEMPTS
#undef OF_ITS_RUNS
  for (const char* sql : kDeletes) SCALELAB_RETURN_IF_ERROR(Statement(*db_, sql).Run(id));
  series_ids_.clear();  // SQLite may reuse the ids of deleted series
  return absl::OkStatus();
}

absl::Status Writer::RaiseCounters(const WriteBatch& batch) {
  if (counters_.empty()) {
    counters_ = {{"study", 0}, {"cell", 0}, {"run", 0}, {"attempt", 0}, {"allocation", 0}};
    Statement all(*db_, "SELECT name, value FROM counter");
    while (all.Step()) {
      std::string name;
      int64_t value = 0;
      all.Read(name, value);
      counters_[name] = value;
    }
    SCALELAB_RETURN_IF_ERROR(all.status());
  }
  Statement put(*db_,
                "INSERT INTO counter (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = "
                "excluded.value");
  const auto raise = [&](const char* name, const auto& rows) {
    mutex_.AssertHeld();  // the thread safety analysis does not look through lambdas
    int64_t& last = counters_[name];
    const int64_t before = last;
    for (const auto& row : rows) last = std::max(last, row.id);
    return last == before ? absl::OkStatus() : put.Run(name, last);
  };
  SCALELAB_RETURN_IF_ERROR(raise("study", batch.studies));
  SCALELAB_RETURN_IF_ERROR(raise("cell", batch.cells));
  SCALELAB_RETURN_IF_ERROR(raise("run", batch.runs));
  SCALELAB_RETURN_IF_ERROR(raise("attempt", batch.attempts));
  return raise("allocation", batch.allocations);
}

}  // namespace scalelab::db
