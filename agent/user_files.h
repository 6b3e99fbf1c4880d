// The directory of a user's jobs and attempts. Follows no symlinks: other users can write to the directory that contains it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "files/attempt_files.h"

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

// The files that a call has removed, or would remove.
struct UserFilesRemoved {
  FilesRemoved files;
  bool complete = true;  // false: the call was interrupted, and another one continues
};

// Removes files of the attempt with the directory `attempt`, which must be `directory`/STUDY/RUN/TOKEN with two ids. With `dry_run`,
// only counts the files. Stops when `over` returns true, which is called before each entry. Returns the errors of
// AttemptFiles::Remove, and FAILED_PRECONDITION if `directory` is missing or not a directory of this user.
absl::StatusOr<UserFilesRemoved> RemoveUserFiles(const std::string& directory, const std::string& attempt,
                                                 FilesOf what, bool dry_run,
                                                 const std::function<bool()>& over);

// Removes the directory `study`, which must be `directory`/STUDY, if it is empty and not `dry_run`. Returns whether it existed.
absl::StatusOr<bool> RemoveEmptyStudy(const std::string& directory, const std::string& study, bool dry_run);

}  // namespace scalelab::agent
