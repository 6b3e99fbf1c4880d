// The code of users' programs that the runs of a study executed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "db/store.h"

namespace scalelab::db {

struct RunCode {
  int64_t run_id = 0;
  std::string json;  // v1::CodeSnapshot, of the attempt that produced the results of the run
};

// Returns the code of the runs of a study that succeeded, by run id, without runs whose code is not known. Returns the errors of
// the Store.
absl::StatusOr<std::vector<RunCode>> ListRunCodes(Store& store, int64_t study_id);

}  // namespace scalelab::db
