// The code of users' programs that the runs of a study executed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "db/store.h"

namespace scalelab::db {

struct RunCode {
  int64_t run_id = 0;
  size_t text = 0;  // index in RunCodes::texts
};

// The code of each run is that of the attempt that produced its results. Most runs of a study have the same text, so
// each text occurs once.
struct RunCodes {
  std::vector<std::string> texts;  // v1::CodeSnapshot as JSON
  std::vector<RunCode> runs;       // by run id
};

// Returns the code of the runs of a study that succeeded, without runs whose code is not known. Returns the errors of
// the Store.
absl::StatusOr<RunCodes> ListRunCodes(Store& store, int64_t study_id);

}  // namespace scalelab::db
