// From the names users give to rows. Reads the database, so it may be called from any thread.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "db/store.h"

namespace scalelab::server {

// "studies/7", "studies/last", "studies/{display name}"; without "studies/" too. NOT_FOUND says how to list.
absl::StatusOr<db::StudyRow> FindStudy(db::Store& store, const std::string& name);
// "studies/7/runs/12", "runs/12", "12".
absl::StatusOr<db::RunRow> FindRun(db::Store& store, const std::string& name);
// Attempt by number of a run, 0 for the last.
absl::StatusOr<db::AttemptRow> FindAttempt(db::Store& store, const db::RunRow& run, int number);

}  // namespace scalelab::server
