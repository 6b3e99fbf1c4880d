// The directory of a user's jobs and attempts. Follows no symlinks: other users can write to the directory that contains it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace scalelab::agent {

// Creates the directory for this user only if it does not exist. Returns FAILED_PRECONDITION if it is not a
// directory of this user.
absl::Status MakeUserDirectory(const std::string& directory);

// Creates the directory of a job, `directory`/allocations/`job`, and writes its script there. `directory` must exist.
absl::Status PrepareJob(const std::string& directory, const std::string& job, const std::string& script);

// Reads at most `length` bytes of a regular file. Its folder must be below `directory`. Returns NOT_FOUND if the file does
// not exist, FAILED_PRECONDITION if it is no regular file.
absl::StatusOr<std::string> ReadUserFile(const std::string& directory, const std::string& folder,
                                         const std::string& name, int64_t offset, int64_t length);

}  // namespace scalelab::agent
