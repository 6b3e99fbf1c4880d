// Finds the database rows of resource names that the caller may see. All functions read the database, so they
// must not be called on the core thread.
#pragma once

#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "db/store.h"
#include "server/rpc/client_call.h"
#include "study/cell_list.h"

namespace scalelab::server {

// FindStudy and FindRun find a study or run for the caller of `call`, and record it as the target of the
// call. They treat studies that the caller may not see, and their runs, as if they did not exist.

// Takes "studies/7", "studies/last" or "studies/{display name}", each also without "studies/". The message of
// NOT_FOUND names the command that lists studies.
absl::StatusOr<db::StudyRow> FindStudy(db::Store& store, ClientCall& call, const std::string& name);
// Takes "studies/7/runs/12", "runs/12" or "12".
absl::StatusOr<db::RunRow> FindRun(db::Store& store, ClientCall& call, const std::string& name);
// Like FindStudy and FindRun, for a call that changes the study or the run. Return PERMISSION_DENIED unless
// the caller may change it.
absl::StatusOr<db::StudyRow> FindStudyToControl(db::Store& store, ClientCall& call, const std::string& name);
absl::StatusOr<db::RunRow> FindRunToControl(db::Store& store, ClientCall& call, const std::string& name);
// Cells of one study.
class FoundCells {
 public:
  FoundCells(const std::vector<int64_t>& ids, CellList cells);
  // Returns the cell with this id, which must be one of the cells found.
  Cell at(int64_t id) const { return cells_[index_.at(id)]; }

 private:
  CellList cells_;
  std::unordered_map<int64_t, size_t> index_;
};
// Returns the cells of a study that have these ids. Returns NOT_FOUND if the study was deleted, and DATA_LOSS if it exists without
// one of the cells.
absl::StatusOr<FoundCells> FindCells(db::Store& store, int64_t study_id, const std::set<int64_t>& ids);
// Return NOT_FOUND with the reason and the date if retention has removed the points or the logs of this
// attempt, and OK otherwise.
absl::Status CheckPointsKept(db::Store& store, const db::RunRow& run, const db::AttemptRow& attempt);
absl::Status CheckLogsKept(db::Store& store, const db::RunRow& run, const db::AttemptRow& attempt);
// Returns the attempt of the run with this number. 0 means the last attempt.
absl::StatusOr<db::AttemptRow> FindAttempt(db::Store& store, const db::RunRow& run, int number);

}  // namespace scalelab::server
