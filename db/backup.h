// Backs up a database, also while it is in use.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace scalelab {
class FileSystem;
}

namespace scalelab::db {

// Copies the database `path`, as of one moment during the call, to the new file `file` (mode 0600, complete
// without any other file). `path` may be in use: it is read through a connection that neither writes nor
// checkpoints. A running service continues to commit meanwhile and its write-ahead log grows accordingly;
// with a rollback journal, its commits wait for the end of the copy.
//
// Until the copy is complete, checked and synced, it is named `file`.part. After an error neither file
// exists. Any thread may call this function. Each error has a message of one sentence:
//
//   NOT_FOUND            `path` does not exist
//   ALREADY_EXISTS       `file` or `file`.part exists; neither is changed
//   FAILED_PRECONDITION  `path` is not a scalelab database, or one of the files cannot be opened
//   RESOURCE_EXHAUSTED   no space left for `file`
//   UNAVAILABLE          another process has locked `path`
//   DATA_LOSS            `path` is damaged
//
// `file_system` contains both files; null: the file system of the machine.
absl::Status BackupDatabase(const std::string& path, const std::string& file,
                            FileSystem* file_system = nullptr);

}  // namespace scalelab::db
