// Reads runs with their attempts and results from a store.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "db/store.h"
#include "scalelab/v1/run.pb.h"

namespace scalelab::server {

// Adds the attempts and the results of a run, which ToRun does not set. Returns the errors of the store.
absl::Status AddResults(db::Store& store, const db::RunRow& row, v1::Run* run);

// Returns all runs of a study in the order of execution, with attempts and results. DATA_LOSS if a cell is
// missing or cannot be read, else the errors of the store.
absl::StatusOr<std::vector<v1::Run>> ReadStudyRuns(db::Store& store, int64_t study_id);

}  // namespace scalelab::server
