// The texts of submitted study files.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "db/store.h"

namespace scalelab::db {

// Returns the text of the study file that the study was submitted with; an empty text if none is stored or
// the study does not exist. Returns the errors of the Store.
absl::StatusOr<std::string> GetStudyFile(Store& store, int64_t study_id);

}  // namespace scalelab::db
