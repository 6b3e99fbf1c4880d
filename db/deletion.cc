#include "db/deletion.h"

#include "db/chunks.h"
#include "db/columns.h"
#include "db/point_codec.h"
#include "db/sqlite/return_if_error.h"
#include "planted/bug.h"

namespace scalelab::db {
namespace {

// Rows that one transaction deletes. A full chunk has up to eight pages, so these are some tens of milliseconds.
constexpr int64_t kRowsPerPiece = 1000;

// Deletes rows until its budget is used up.
class Eraser {
 public:
  explicit Eraser(Database& db) : db_(db) {}
  bool done() const { return left_ <= 0; }
  // Subtracts one from the budget, for a step that deleted nothing.
  void Count() { --left_; }

  // Runs a DELETE whose last parameter is the maximum number of rows.
  template <class... T>
  absl::Status Some(const char* sql, const T&... parameters) {
    if (done()) return absl::OkStatus();
    Statement statement(db_, sql);
    SCALELAB_RETURN_IF_ERROR(statement.Run(parameters..., left_));
    left_ -= statement.changes();
    return absl::OkStatus();
  }
  // Runs a DELETE of one row. The rows that belong to it must have been deleted.
  absl::Status One(const char* sql, int64_t id) {
    if (done()) return absl::OkStatus();
    --left_;
    return Statement(db_, sql).Run(id);
  }
  // Repeats the query `sql`, which returns the first row that is left, and calls `erase` with the columns of
  // this row. `erase` must delete the row.
  template <class Erase>
  absl::Status Each(const char* sql, int64_t parent, const Erase& erase) {
    while (!done()) {
      int64_t id = 0, other = 0;
      {
        Statement first(db_, sql);
        first.Bind(parent);
        const bool found = first.Step();
        if (found) first.Read(id, other);
        SCALELAB_RETURN_IF_ERROR(first.status());
        if (!found) break;
      }
      SCALELAB_RETURN_IF_ERROR(erase(id, other));
    }
    return absl::OkStatus();
  }

 private:
  Database& db_;
  int64_t left_ = kRowsPerPiece;
};

absl::Status EraseSeries(Eraser& eraser, int64_t series, int64_t key) {
  SCALELAB_RETURN_IF_ERROR(eraser.Some(
      "DELETE FROM point_chunk WHERE id IN (SELECT id FROM point_chunk WHERE id BETWEEN ? AND ? LIMIT ?)",
      ChunkId(series, 0), ChunkId(series, kMaxLine - 1)));
  if (eraser.done()) return absl::OkStatus();
  SCALELAB_RETURN_IF_ERROR(eraser.One("DELETE FROM series WHERE id = ?", series));
  return eraser.Some(
      "DELETE FROM metric_key WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM series WHERE key_id = ?1) AND "
      "?2 >= 0",
      key);
}

absl::Status ErasePoints(Eraser& eraser, int64_t attempt) {
  SCALELAB_RETURN_IF_ERROR(eraser.One("DELETE FROM merge_task WHERE attempt_id = ?", attempt));
  SCALELAB_RETURN_IF_ERROR(
      eraser.Each("SELECT id, key_id FROM series WHERE attempt_id = ? LIMIT 1", attempt,
                  [&](int64_t id, int64_t key) { return EraseSeries(eraser, id, key); }));
  return eraser.Some(
      "DELETE FROM point_axis WHERE id IN (SELECT id FROM point_axis WHERE id BETWEEN ? AND ? LIMIT ?)",
      FirstAxisId(attempt), LastAxisId(attempt));
}

absl::Status EraseAttempt(Eraser& eraser, int64_t attempt) {
  SCALELAB_RETURN_IF_ERROR(ErasePoints(eraser, attempt));
  SCALELAB_RETURN_IF_ERROR(eraser.Some(
      "DELETE FROM epoch WHERE attempt_id = ?1 AND (rank, epoch) IN (SELECT rank, epoch FROM epoch WHERE "
      "attempt_id = ?1 LIMIT ?2)",
      attempt));
  SCALELAB_RETURN_IF_ERROR(eraser.Some(
      "DELETE FROM stream WHERE attempt_id = ?1 AND rank IN (SELECT rank FROM stream WHERE attempt_id = "
      "?1 LIMIT ?2)",
      attempt));
  SCALELAB_RETURN_IF_ERROR(eraser.One("DELETE FROM provenance WHERE attempt_id = ?", attempt));
  return eraser.One("DELETE FROM attempt WHERE id = ?", attempt);
}

absl::Status EraseRun(Eraser& eraser, int64_t run) {
  SCALELAB_RETURN_IF_ERROR(eraser.Each("SELECT id, 0 FROM attempt WHERE run_id = ? LIMIT 1", run,
                                       [&](int64_t id, int64_t) { return EraseAttempt(eraser, id); }));
  SCALELAB_RETURN_IF_ERROR(eraser.One("DELETE FROM run_summary WHERE run_id = ?", run));
  SCALELAB_RETURN_IF_ERROR(eraser.One("DELETE FROM run_metrics WHERE run_id = ?", run));
  SCALELAB_RETURN_IF_ERROR(eraser.One("DELETE FROM run_times WHERE run_id = ?", run));
  return eraser.One("DELETE FROM run WHERE id = ?", run);
}

// Returns the first study that is marked and not in `kept`; 0 if there is none.
absl::StatusOr<int64_t> FirstMarked(Database& db, const std::set<int64_t>& kept) {
  Statement marked(db, "SELECT study_id FROM deleted_study ORDER BY study_id");
  while (marked.Step()) {
    int64_t study = 0;
    marked.Read(study);
    if (marked.status().ok() && !kept.contains(study)) return study;
  }
  SCALELAB_RETURN_IF_ERROR(marked.status());
  return 0;
}

}  // namespace

absl::Status MarkDeleted(Database& db, int64_t study_id) {
  SCALELAB_RETURN_IF_ERROR(
      Statement(
          db, "INSERT INTO deleted_study (study_id) SELECT id FROM study WHERE id = ? ON CONFLICT DO NOTHING")
          .Run(study_id));
  // Clear the request_id, so that the owner may submit a study with the same request_id again.
  SCALELAB_RETURN_IF_ERROR(Statement(db, "UPDATE study SET request_id = '' WHERE id = ?").Run(study_id));
  return Statement(db, "DELETE FROM run_count WHERE study_id = ?").Run(study_id);
}

absl::StatusOr<bool> DeleteSome(Database& db, const std::set<int64_t>& kept) {
  const absl::StatusOr<int64_t> first = FirstMarked(db, kept);
  if (!first.ok()) return first.status();
  const int64_t study = *first;
  if (study == 0) return false;
  Eraser eraser(db);
  SCALELAB_RETURN_IF_ERROR(eraser.Each("SELECT id, 0 FROM run WHERE study_id = ? LIMIT 1", study,
                                       [&](int64_t id, int64_t) { return EraseRun(eraser, id); }));
  SCALELAB_RETURN_IF_ERROR(
      eraser.Some("DELETE FROM allocation WHERE id IN (SELECT id FROM allocation WHERE study_id = ? AND "
                  "state = 5 LIMIT ?)",
                  study));
  if (Planted(Bug::kDeletionLosesAllocations)) {
    SCALELAB_RETURN_IF_ERROR(eraser.One("DELETE FROM allocation WHERE study_id = ?", study));
  }
  SCALELAB_RETURN_IF_ERROR(
      eraser.Some("DELETE FROM cell WHERE id IN (SELECT id FROM cell WHERE study_id = ? LIMIT ?)", study));
  SCALELAB_RETURN_IF_ERROR(eraser.Some(
      "DELETE FROM cell_value WHERE id IN (SELECT id FROM cell_value WHERE id BETWEEN ? AND ? LIMIT ?)",
      CellValueId(study, 0), CellValueId(study, kMaxCellValue)));
  SCALELAB_RETURN_IF_ERROR(eraser.Some(
      "DELETE FROM notice WHERE id IN (SELECT id FROM notice WHERE study_id = ? AND state > 1 LIMIT ?)",
      study));
  SCALELAB_RETURN_IF_ERROR(
      eraser.One("DELETE FROM removal WHERE study_id = ?1 AND kind BETWEEN 1 AND 3", study));
  SCALELAB_RETURN_IF_ERROR(eraser.One("DELETE FROM removed WHERE study_id = ?", study));
  SCALELAB_RETURN_IF_ERROR(eraser.One("DELETE FROM study_origin WHERE study_id = ?", study));
  SCALELAB_RETURN_IF_ERROR(eraser.One("DELETE FROM study_file WHERE study_id = ?", study));
  SCALELAB_RETURN_IF_ERROR(eraser.One("DELETE FROM study WHERE id = ?", study));
  SCALELAB_RETURN_IF_ERROR(eraser.One("DELETE FROM deleted_study WHERE study_id = ?", study));
  const absl::StatusOr<int64_t> next = FirstMarked(db, kept);
  if (!next.ok()) return next.status();
  return *next != 0;
}

absl::StatusOr<bool> RemovePointsSome(Database& db) {
  int64_t study = 0, last_run = 0, first = 0, last = 0;
  Micros removed = 0;
  {
    Statement next(db,
                   "SELECT r.study_id, r.last_run, m.points, s.first_run_id, s.last_run_id FROM removal r "
                   "CROSS JOIN removed "
                   "m ON m.study_id = r.study_id CROSS JOIN study s ON s.id = r.study_id WHERE r.kind = 1 "
                   "AND s.state >= 3 "
                   "ORDER BY r.study_id LIMIT 1");
    const bool found = next.Step();
    if (found) next.Read(study, last_run, removed, first, last);
    SCALELAB_RETURN_IF_ERROR(next.status());
    if (!found) return false;
  }
  Eraser eraser(db);
  while (!eraser.done()) {
    int64_t run = 0;
    {
      // As with RunRange, the + makes SQLite scan neighbouring ids.
      Statement next(db, "SELECT id FROM run WHERE id > ? AND id <= ? AND +study_id = ? ORDER BY id LIMIT 1");
      next.Bind(std::max(last_run, first - 1), last, study);
      const bool found = next.Step();
      if (found) next.Read(run);
      SCALELAB_RETURN_IF_ERROR(next.status());
      if (!found) {
        SCALELAB_RETURN_IF_ERROR(
            Statement(db, "DELETE FROM removal WHERE kind = 1 AND study_id = ?").Run(study));
        return true;  // there may be another study
      }
    }
    Statement attempts(
        db,
        "SELECT id FROM attempt a WHERE run_id = ? AND finished > 0 AND finished <= ? AND (EXISTS (SELECT 1 "
        "FROM series WHERE attempt_id = a.id) OR EXISTS (SELECT 1 FROM point_axis WHERE id BETWEEN a.id << "
        "32 "
        "AND (a.id << 32) + 4294967295)) LIMIT 1");
    bool found = true;
    while (found && !eraser.done()) {
      int64_t attempt = 0;
      attempts.Bind(run, removed);
      found = attempts.Step();
      if (found) attempts.Read(attempt);
      SCALELAB_RETURN_IF_ERROR(attempts.status());
      attempts.Reset();
      if (found) SCALELAB_RETURN_IF_ERROR(ErasePoints(eraser, attempt));
    }
    if (found) break;
    last_run = run;
    eraser.Count();
  }
  SCALELAB_RETURN_IF_ERROR(
      Statement(db, "UPDATE removal SET last_run = ? WHERE kind = 1 AND study_id = ?").Run(last_run, study));
  return true;
}

}  // namespace scalelab::db
