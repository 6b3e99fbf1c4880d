// Deletes studies, and points that retention removes, in bounded pieces.
#pragma once

#include <cstdint>
#include <set>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "db/sqlite/sqlite.h"

namespace scalelab::db {

// Conditions for queries: rows of a study that is being deleted are invisible. `deleted_study` is nearly always empty,
// and CROSS JOIN lets SQLite look there first.
#define SCALELAB_VISIBLE_STUDY(id) " NOT EXISTS (SELECT 1 FROM deleted_study WHERE study_id = " id ") "
#define SCALELAB_VISIBLE_RUN(id)                                                                            \
  " NOT EXISTS (SELECT 1 FROM deleted_study d CROSS JOIN run v ON v.study_id = d.study_id WHERE v.id = " id \
  ") "
#define SCALELAB_VISIBLE_ATTEMPT(id)                                                                   \
  " NOT EXISTS (SELECT 1 FROM deleted_study d CROSS JOIN run v ON v.study_id = d.study_id CROSS JOIN " \
  "attempt w ON w.run_id = v.id WHERE w.id = " id ") "

// Marks a study as deleted. From then on, no read returns anything of it. Does nothing if there is
// no such study.
absl::Status MarkDeleted(Database& db, int64_t study_id);
// Deletes rows of one study that is marked and not in `kept`, at most some hundred. Returns whether any such study is
// still marked. Runs inside the caller's transaction.
absl::StatusOr<bool> DeleteSome(Database& db, const std::set<int64_t>& kept);

// An SQL condition: whether retention has not removed the points of the attempt.
#define SCALELAB_POINTS_KEPT(id)                                                                      \
  " NOT EXISTS (SELECT 1 FROM attempt w CROSS JOIN run v ON v.id = w.run_id CROSS JOIN removed m ON " \
  "m.study_id = v.study_id WHERE w.id = " id " AND w.finished > 0 AND w.finished <= m.points) "

// Deletes points of one study whose removal has begun, at most some hundred rows, unless the study is not final any
// more. Returns whether more is left. Runs inside the caller's transaction.
absl::StatusOr<bool> RemovePointsSome(Database& db);

}  // namespace scalelab::db
