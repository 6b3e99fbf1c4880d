#include "db/retention/retention.h"

#include "absl/strings/str_cat.h"
#include "db/chunks.h"
#include "db/deletion.h"
#include "db/point_codec.h"
#include "db/sqlite/return_if_error.h"
#include "db/sqlite/sqlite.h"

namespace scalelab::db {
namespace {

// An SQL condition: an attempt of the run `v` has points.
#define SCALELAB_HAS_POINTS \
  "EXISTS (SELECT 1 FROM attempt a CROSS JOIN series e ON e.attempt_id = a.id WHERE a.run_id = v.id)"

const char* RemovableSql(Removal what) {
  switch (what) {
    case Removal::kPoints:
      return "SELECT s.id FROM study s LEFT JOIN removed m ON m.study_id = s.id WHERE s.state >= 3 AND "
             "s.finished <= ? AND "
             "coalesce(m.points, 0) < s.finished AND" SCALELAB_VISIBLE_STUDY(
                 "s.id") "AND EXISTS (SELECT 1 FROM run v WHERE v.study_id = s.id AND " SCALELAB_HAS_POINTS
                         ") ORDER BY s.finished, s.id";
    case Removal::kLogs:
      return "SELECT s.id FROM study s LEFT JOIN removed m ON m.study_id = s.id WHERE s.state >= 3 AND "
             "s.finished <= ? AND "
             "max(coalesce(m.logs, 0), coalesce(m.directories, 0)) < s.finished AND" SCALELAB_VISIBLE_STUDY(
                 "s.id") "ORDER BY s.finished, s.id";
    case Removal::kDirectories:
      return "SELECT s.id FROM study s LEFT JOIN removed m ON m.study_id = s.id WHERE s.state >= 3 AND "
             "s.finished <= ? AND "
             "coalesce(m.directories, 0) < s.finished AND" SCALELAB_VISIBLE_STUDY(
                 "s.id") "ORDER BY s.finished, s.id";
  }
  return "";
}

const char* MarkSql(Removal what) {
  switch (what) {
    case Removal::kPoints:
      return "INSERT INTO removed (study_id, points) VALUES (?1, ?2) ON CONFLICT (study_id) DO UPDATE SET "
             "points = ?2";
    case Removal::kLogs:
      return "INSERT INTO removed (study_id, logs) VALUES (?1, ?2) ON CONFLICT (study_id) DO UPDATE SET logs "
             "= ?2";
    case Removal::kDirectories:
      return "INSERT INTO removed (study_id, directories) VALUES (?1, ?2) ON CONFLICT (study_id) DO UPDATE "
             "SET "
             "directories = ?2";
  }
  return "";
}

absl::Status ReadIds(Statement& statement, std::vector<int64_t>& ids) {
  while (statement.Step()) statement.Read(ids.emplace_back());
  return statement.status();
}

// Returns FAILED_PRECONDITION if the study is not final.
absl::Status CheckFinal(Database& db, int64_t study_id) {
  Statement find(db, "SELECT count(*) FROM study WHERE id = ? AND state >= 3");
  find.Bind(study_id);
  bool found = false;
  if (find.Step()) find.Read(found);
  if (!find.status().ok() || found) return find.status();
  return absl::FailedPreconditionError(
      absl::StrCat("study ", study_id, " is not final, and is left as it is"));
}

absl::StatusOr<int64_t> ReadLastStudyId(Database& db) {
  return db.QueryInt("SELECT coalesce(max(value), 0) FROM counter WHERE name = 'study'");
}

}  // namespace

absl::StatusOr<Removed> GetRemoved(Store& store, int64_t study_id) {
  Removed removed;
  const absl::Status status = store.ReadRows([&](Database& db) {
    Statement find(db, "SELECT points, logs, directories FROM removed WHERE study_id = ?");
    find.Bind(study_id);
    if (find.Step()) find.Read(removed.points, removed.logs, removed.directories);
    return find.status();
  });
  if (!status.ok()) return status;
  return removed;
}

absl::StatusOr<std::vector<int64_t>> ListRemovable(Store& store, Removal what, Micros until) {
  std::vector<int64_t> ids;
  const absl::Status status = store.ReadRows([&](Database& db) {
    Statement all(db, RemovableSql(what));
    all.Bind(until);
    return ReadIds(all, ids);
  });
  if (!status.ok()) return status;
  return ids;
}

absl::StatusOr<PointsSize> MeasurePoints(Store& store, int64_t study_id) {
  PointsSize size;
  const absl::Status status = store.ReadRows([&](Database& db) -> absl::Status {
    const auto add = [&](const char* sql) {
      Statement sum(db, sql);
      sum.Bind(study_id);
      int64_t points = 0, bytes = 0;
      if (sum.Step()) sum.Read(points, bytes);
      size.points += points;
      size.bytes += bytes;
      return sum.status();
    };
    // This reads little, because length() of a blob does not read its overflow pages.
    SCALELAB_RETURN_IF_ERROR(
        add("SELECT coalesce(sum(c.count), 0), coalesce(sum(length(c.value) + length(c.line) + "
            "length(c.step) + length(c.time)), "
            "0) FROM run v CROSS JOIN attempt a ON a.run_id = v.id CROSS JOIN series e ON e.attempt_id = "
            "a.id CROSS JOIN "
            "point_chunk c ON c.id BETWEEN e.id << 32 AND (e.id << 32) + 4294967295 WHERE v.study_id = ? AND "
            "a.finished > 0"));
    return add(
        "SELECT 0, coalesce(sum(length(x.line) + length(x.step) + length(x.time)), 0) FROM run v CROSS JOIN "
        "attempt a ON "
        "a.run_id = v.id CROSS JOIN point_axis x ON x.id BETWEEN a.id << 32 AND (a.id << 32) + 4294967295 "
        "WHERE v.study_id "
        "= ? AND a.finished > 0");
  });
  if (!status.ok()) return status;
  return size;
}

absl::Status BeginRemoval(Store& store, Removal what, int64_t study_id, Micros now) {
  return store.WriteRows([&](Database& db) -> absl::Status {
    SCALELAB_RETURN_IF_ERROR(CheckFinal(db, study_id));
    SCALELAB_RETURN_IF_ERROR(Statement(db, MarkSql(what)).Run(study_id, now));
    return Statement(db,
                     "INSERT INTO removal (kind, study_id) VALUES (?, ?) ON CONFLICT (kind, study_id) DO "
                     "UPDATE SET "
                     "last_run = 0")
        .Run(what, study_id);
  });
}

absl::StatusOr<std::vector<int64_t>> ListUnfinished(Store& store, Removal what) {
  std::vector<int64_t> ids;
  const absl::Status status = store.ReadRows([&](Database& db) {
    Statement all(db, "SELECT study_id FROM removal WHERE kind = ? ORDER BY study_id");
    all.Bind(what);
    return ReadIds(all, ids);
  });
  if (!status.ok()) return status;
  return ids;
}

absl::Status EndRemoval(Store& store, Removal what, int64_t study_id) {
  return store.WriteRows([&](Database& db) {
    return Statement(db, "DELETE FROM removal WHERE kind = ? AND study_id = ?").Run(what, study_id);
  });
}

absl::StatusOr<std::vector<EndedAttempt>> ListEndedAttempts(Store& store, int64_t study_id, Micros until,
                                                            int64_t after, int limit) {
  std::vector<EndedAttempt> attempts;
  const absl::Status status = store.ReadRows([&](Database& db) -> absl::Status {
    Transaction transaction(db, Transaction::Kind::kRead);
    SCALELAB_RETURN_IF_ERROR(transaction.status());
    SCALELAB_RETURN_IF_ERROR(CheckFinal(db, study_id));
    Statement all(db,
                  "SELECT a.id, a.run_id, a.token, a.directory FROM run v CROSS JOIN attempt a ON a.run_id = "
                  "v.id WHERE "
                  "v.study_id = ? AND a.id > ? AND a.state >= 4 AND a.finished <= ? ORDER BY a.id LIMIT ?");
    all.Bind(study_id, after, until, limit);
    while (all.Step()) {
      EndedAttempt& attempt = attempts.emplace_back();
      all.Read(attempt.id, attempt.run_id, attempt.token, attempt.directory);
    }
    return all.status();
  });
  if (!status.ok()) return status;
  return attempts;
}

absl::StatusOr<bool> RunEndedBy(Store& store, int64_t study_id, int64_t run_id, Micros until) {
  bool ended = false;
  const absl::Status status = store.ReadRows([&](Database& db) -> absl::Status {
    Transaction transaction(db, Transaction::Kind::kRead);
    SCALELAB_RETURN_IF_ERROR(transaction.status());
    SCALELAB_RETURN_IF_ERROR(CheckFinal(db, study_id));
    Statement later(db, "SELECT count(*) = 0 FROM attempt WHERE run_id = ? AND (state < 4 OR finished > ?)");
    later.Bind(run_id, until);
    if (later.Step()) later.Read(ended);
    return later.status();
  });
  if (!status.ok()) return status;
  return ended;
}

absl::StatusOr<int64_t> GetLastStudyId(Store& store) {
  absl::StatusOr<int64_t> id = 0;
  const absl::Status status = store.ReadRows([&](Database& db) {
    id = ReadLastStudyId(db);
    return id.status();
  });
  if (!status.ok()) return status;
  return id;
}

absl::Status RaiseLastStudyId(Store& store, int64_t id) {
  return store.WriteRows([&](Database& db) {
    return Statement(
               db,
               "INSERT INTO counter (name, value) VALUES ('study', ?1) ON CONFLICT (name) DO UPDATE SET "
               "value = max(value, ?1)")
        .Run(id);
  });
}

absl::StatusOr<std::vector<int64_t>> ListDeletedStudies(Store& store, const std::vector<int64_t>& ids) {
  std::vector<int64_t> deleted;
  const absl::Status status = store.ReadRows([&](Database& db) -> absl::Status {
    Transaction transaction(db, Transaction::Kind::kRead);
    SCALELAB_RETURN_IF_ERROR(transaction.status());
    const absl::StatusOr<int64_t> largest = ReadLastStudyId(db);
    if (!largest.ok()) return largest.status();
    for (const int64_t id : ids) {
      if (id <= 0 || id > *largest) continue;
      // The row is there until all other rows of a deleted study are gone.
      Statement find(db, "SELECT count(*) FROM study WHERE id = ?");
      find.Bind(id);
      int64_t rows = 1;
      if (find.Step()) find.Read(rows);
      SCALELAB_RETURN_IF_ERROR(find.status());
      if (rows == 0) deleted.push_back(id);
    }
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return deleted;
}

absl::StatusOr<DatabaseSize> GetDatabaseSize(Store& store) {
  DatabaseSize size;
  const absl::Status status = store.ReadRows([&](Database& db) -> absl::Status {
    const absl::StatusOr<int64_t> page = db.QueryInt("PRAGMA page_size");
    if (!page.ok()) return page.status();
    const absl::StatusOr<int64_t> pages = db.QueryInt("PRAGMA page_count");
    if (!pages.ok()) return pages.status();
    const absl::StatusOr<int64_t> free = db.QueryInt("PRAGMA freelist_count");
    if (!free.ok()) return free.status();
    size = {*pages * *page, *free * *page};
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return size;
}

}  // namespace scalelab::db
