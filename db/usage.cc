#include "db/usage.h"

#include <utility>

namespace scalelab::db {
namespace {

absl::Status ReadServed(Database& db, Snapshot& snapshot) {
  // In a query with max(), SQLite takes the other columns from the row with the maximum.
  Statement served(
      db,
      "SELECT t.allocation_id, count(*), max(t.id), t.run_id FROM attempt t JOIN run r ON r.id = t.run_id "
      "WHERE r.study_id = ? AND t.allocation_id IN (SELECT id FROM allocation WHERE state < 5) "
      "GROUP BY t.allocation_id");
  for (const StudyRow& study : snapshot.studies) {
    served.Bind(study.id);
    while (served.Step()) {
      int64_t allocation = 0, newest = 0;
      AttemptsServed row;
      served.Read(allocation, row.attempts, newest, row.newest_run);
      snapshot.attempts_served[allocation] = row;
    }
    if (!served.status().ok()) return served.status();
    served.Reset();
  }
  return absl::OkStatus();
}

absl::Status ReadUnused(Database& db, Snapshot& snapshot) {
  // In a query with max(), SQLite takes the other columns from the row with the maximum.
  Statement unused(
      db,
      "SELECT run_id, count(*), max(ended), reason FROM allocation l WHERE study_id = ?1 AND state = 5 "
      "AND CASE WHEN run_id = 0 THEN id > (SELECT coalesce(max(allocation_id), 0) FROM attempt "
      "WHERE run_id IN (SELECT id FROM run WHERE study_id = ?1)) "
      "ELSE NOT EXISTS (SELECT 1 FROM attempt t WHERE t.run_id = l.run_id AND t.allocation_id >= l.id) END "
      "GROUP BY run_id");
  for (const StudyRow& study : snapshot.studies) {
    unused.Bind(study.id);
    while (unused.Step()) {
      UnusedAllocations& row = snapshot.unused_allocations.emplace_back();
      row.study_id = study.id;
      unused.Read(row.run_id, row.count, row.last_ended, row.last_reason);
    }
    if (!unused.status().ok()) return unused.status();
    unused.Reset();
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadUseOfAllocations(Database& db, Snapshot& snapshot) {
  if (absl::Status status = ReadServed(db, snapshot); !status.ok()) return status;
  if (absl::Status status = ReadUnused(db, snapshot); !status.ok()) return status;
  Statement gpus(db,
                 "SELECT coalesce(sum(held * 1e-6 * nodes * ranks_per_node * gpus_per_rank), 0.0) "
                 "FROM allocation WHERE study_id = ? AND state = 5");
  for (const StudyRow& study : snapshot.studies) {
    gpus.Bind(study.id);
    double seconds = 0;
    if (gpus.Step()) gpus.Read(seconds);
    if (!gpus.status().ok()) return gpus.status();
    gpus.Reset();
    snapshot.gpu_seconds[study.id] = seconds;
  }
  return absl::OkStatus();
}

}  // namespace scalelab::db
