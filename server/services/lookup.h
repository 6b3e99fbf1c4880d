// Finds the rows of resource names, for a caller who may see them. The functions read the database: do not call them on the
// core thread.
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

// The following two read for the caller of `call`, and make the result the target of the call. A study that the caller may
// not see, and its runs, do not exist: neither for "last", nor as the newest study of a name, nor in the message.

// Takes "studies/7", "studies/last" or "studies/{display name}", each also without "studies/". The message of
// NOT_FOUND names the command that lists studies.
absl::StatusOr<db::StudyRow> FindStudy(db::Store& store, ClientCall& call, const std::string& name);
// Takes "studies/7/runs/12", "runs/12" or "12".
absl::StatusOr<db::RunRow> FindRun(db::Store& store, ClientCall& call, const std::string& name);
// The same for a call that changes the study or the run. Returns PERMISSION_DENIED unless the caller may do that.
absl::StatusOr<db::StudyRow> FindStudyToControl(db::Store& store, ClientCall& call, const std::string& name);
absl::StatusOr<db::RunRow> FindRunToControl(db::Store& store, ClientCall& call, const std::string& name);
// Cells of one study.
class FoundCells {
 public:
  FoundCells(const std::vector<int64_t>& ids, CellList cells);
  // Returns a cell by its id, which must be one of those found.
  Cell at(int64_t id) const { return cells_[index_.at(id)]; }

 private:
  CellList cells_;
  std::unordered_map<int64_t, size_t> index_;
};
// Returns cells of a study. Returns DATA_LOSS if one of them does not exist.
absl::StatusOr<FoundCells> FindCells(db::Store& store, int64_t study_id, const std::set<int64_t>& ids);
// Returns NOT_FOUND with the reason and the date if retention has removed the points or the logs of an attempt of this run,
// else OK.
absl::Status CheckPointsKept(db::Store& store, const db::RunRow& run, const db::AttemptRow& attempt);
absl::Status CheckLogsKept(db::Store& store, const db::RunRow& run, const db::AttemptRow& attempt);
// Takes the number of an attempt of the run, or 0 for the last attempt.
absl::StatusOr<db::AttemptRow> FindAttempt(db::Store& store, const db::RunRow& run, int number);

}  // namespace scalelab::server
