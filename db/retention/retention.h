// Removes points for retention, and records what retention has removed. All functions return the errors
// of the Store.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "db/store.h"

namespace scalelab::db {

// The kinds of data that retention removes. The database stores these integers (table removal).
enum class Removal : int { kPoints = 1, kLogs = 2, kDirectories = 3 };

// The times when points, logs and directories of a study were removed; 0: never. Data of attempts that ended
// after that time were not removed.
struct Removed {
  Micros points = 0, logs = 0, directories = 0;
};
absl::StatusOr<Removed> GetRemoved(Store& store, int64_t study_id);

// Returns the ids of final studies that ended at `until` or earlier and from which `what` has not been
// removed since they ended, oldest first. With kPoints, returns only studies that have points.
absl::StatusOr<std::vector<int64_t>> ListRemovable(Store& store, Removal what, Micros until);

// Counts the points of a study's attempts that have ended.
struct PointsSize {
  int64_t points = 0;
  int64_t bytes = 0;  // size of the encoded points, without the overhead of rows and pages
};
absl::StatusOr<PointsSize> MeasurePoints(Store& store, int64_t study_id);

// Records that the removal begins at `now`. From now on, reads do not return the removed data.
// Store::Maintain removes points; the caller removes files, and calls EndRemoval afterwards. Returns
// FAILED_PRECONDITION if the study is not final.
absl::Status BeginRemoval(Store& store, Removal what, int64_t study_id, Micros now);
// Returns the studies whose removal is not complete.
absl::StatusOr<std::vector<int64_t>> ListUnfinished(Store& store, Removal what);
absl::Status EndRemoval(Store& store, Removal what, int64_t study_id);

// An attempt whose files may be removed.
struct EndedAttempt {
  int64_t id = 0, run_id = 0;
  std::string token, directory;
};
// Returns at most `limit` attempts with ids above `after` that ended at `until` or earlier, ordered by id.
// Returns FAILED_PRECONDITION if the study is no longer final.
absl::StatusOr<std::vector<EndedAttempt>> ListEndedAttempts(Store& store, int64_t study_id, Micros until,
                                                            int64_t after, int limit);
// Returns whether all attempts of the run ended at `until` or earlier. If not, the run was retried, and its checkpoints
// may be newer than `until`. Returns FAILED_PRECONDITION if the study is no longer final.
absl::StatusOr<bool> RunEndedBy(Store& store, int64_t study_id, int64_t run_id, Micros until);

// Returns the largest id that a study ever had; 0 if there was no study.
absl::StatusOr<int64_t> GetLastStudyId(Store& store);
// Makes the ids of new studies larger than `id`. The coordinator must not run yet, because it reads the largest id once.
absl::Status RaiseLastStudyId(Store& store, int64_t id);

// Returns those of `ids` that were ids of studies and whose rows are all deleted, in the order of `ids`. Does
// not return ids above the largest one that a study ever had.
absl::StatusOr<std::vector<int64_t>> ListDeletedStudies(Store& store, const std::vector<int64_t>& ids);

struct DatabaseSize {
  int64_t bytes = 0;       // size of the database file, without its WAL
  int64_t free_bytes = 0;  // bytes of the file that hold no rows
};
absl::StatusOr<DatabaseSize> GetDatabaseSize(Store& store);

}  // namespace scalelab::db
