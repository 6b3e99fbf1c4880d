// Finds the rows of resource names. The functions read the database: do not call them on the core thread.
#pragma once

#include <set>
#include <string>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "db/store.h"

namespace scalelab::server {

// Takes "studies/7", "studies/last" or "studies/{display name}", each also without "studies/". The message of
// NOT_FOUND names the command that lists studies.
absl::StatusOr<db::StudyRow> FindStudy(db::Store& store, const std::string& name);
// Takes "studies/7/runs/12", "runs/12" or "12".
absl::StatusOr<db::RunRow> FindRun(db::Store& store, const std::string& name);
// Returns the cells with these ids, by id. Returns DATA_LOSS if one of them does not exist.
absl::StatusOr<std::unordered_map<int64_t, db::CellRow>> FindCells(db::Store& store,
                                                                   const std::set<int64_t>& ids);
// Takes the number of an attempt of the run, or 0 for the last attempt.
absl::StatusOr<db::AttemptRow> FindAttempt(db::Store& store, const db::RunRow& run, int number);

}  // namespace scalelab::server
